"""The occupations, ways of writing and degrees of expertise that personas are drawn from by default."""

ROLES: tuple[str, ...] = tuple(
    """\
accountant|actuary|air traffic controller|anaesthetist|animal keeper|apprentice carpenter|archaeologist|architect|
archivist|art restorer|auditor|backend developer|baker|bank clerk|barista|beekeeper|bicycle mechanic|biologist|
blogger|bookkeeper|bookshop owner|brewer|bus driver|business analyst|butcher|call centre agent|cartographer|
catering manager|chemist|chief of staff|church organist|city councillor|civil engineer|claims adjuster|
climate researcher|coach of a youth team|community organiser|compliance officer|conference planner|
construction foreman|content moderator|cook|copy editor|court clerk|customer success manager|customs officer|
dairy farmer|dance teacher|data analyst|data engineer|database administrator|debt counsellor|dental assistant|
dentist|desktop support technician|dietitian|dispatcher|doctoral student|documentary film maker|dog trainer|
driving instructor|e-commerce manager|economist|electrician|embedded developer|emergency planner|energy consultant|
English teacher|estate agent|event technician|facility manager|farmer|fashion designer|ferry captain|
finance director|fire inspector|fisheries officer|fitness trainer|flight attendant|florist|food safety inspector|
forester|founder of a start-up|freelance translator|frontend developer|fundraiser|game designer|gardener|
genealogist|
general practitioner|geologist|glazier|goldsmith|graphic designer|greengrocer|guest house owner|hairdresser|
harbour master|head of a nursery school|head of logistics|health insurance clerk|high school student|historian|
hospital pharmacist|hotel receptionist|housing association manager|human resources manager|hydrologist|
illustrator|import agent|independent journalist|industrial designer|insurance broker|interior designer|interpreter|
inventory clerk|IT security analyst|janitor|jazz musician|joiner|judge's assistant|kindergarten teacher|
laboratory technician|landlord|landscape architect|language student|laundry owner|lawyer|librarian|lifeguard|
lighting technician|linguist|literary agent|locksmith|logistics planner|machine operator|maintenance engineer|
market researcher|marketing assistant|mathematics teacher|meat inspector|mechanical engineer|medical coder|
meteorologist|midwife|minister's secretary|mobile developer|mortgage adviser|mountain guide|museum curator|
music teacher|network engineer|night porter|notary|novelist|nuclear safety officer|nurse|nutrition scientist|
occupational therapist|office manager|online tutor|operations manager|optician|orchestra manager|orthopaedist|
osteopath|packaging designer|painter|paralegal|paramedic|parent on parental leave|park ranger|parking attendant|
patent examiner|pathologist|payroll specialist|pensioner|personal assistant|personal shopper|pest controller|
petrol station owner|pharmacist|philosophy student|photographer|physicist|physiotherapist|piano tuner|
pilot|plumber|podcast producer|police officer|political adviser|pool manager|postal worker|potter|press officer|
primary school teacher|printer|prison educator|private investigator|procurement manager|product manager|
production planner|programme officer of a charity|project manager|proofreader|property manager|prosthetist|
psychologist|public defender|publisher|quality inspector|quantity surveyor|quarry manager|radio presenter|
radiographer|railway signaller|real estate photographer|receptionist|recruiter|recycling coordinator|
refugee case worker|rental car agent|restaurant owner|retail manager|retired engineer|risk manager|
road planner|roofer|safety engineer|sailor|sales representative|school secretary|scout leader|
screenwriter|sculptor|security guard|seismologist|seller of second-hand goods|set designer|shift supervisor|
ship broker|shoemaker|shop assistant|site reliability engineer|small business owner|social worker|
software tester|soil scientist|solar installer|sommelier|sound engineer|speech therapist|sports journalist|
statistician|steel worker|stock keeper|street vendor|structural engineer|student of law|student of medicine|
supply chain analyst|support engineer|surgeon|surveyor|sustainability officer|swimming teacher|
systems administrator|tailor|tax adviser|taxi driver|teacher of a village school|technical writer|
telecommunications engineer|textile engineer|theatre director|ticket agent|tour guide|town planner|trade unionist|
traffic engineer|train conductor|trainee|travel agent|treasurer of a club|tree surgeon|truck driver|
tutor|union lawyer|university administrator|upholsterer|urban farmer|user researcher|utility worker|
vet|video editor|vineyard owner|violin maker|visa officer|vocational trainer|volunteer at a food bank|
volunteer firefighter|waiter|warehouse manager|waste inspector|watchmaker|water engineer|web designer|
wedding planner|welder|wildlife photographer|wind turbine technician|window dresser|wine merchant|
wood turner|workshop owner|youth worker|zoologist""".replace("\n", "").split("|")
)
"""Occupations."""

_TONES = (
    "brief",
    "brief and impatient",
    "polite and formal",
    "polite and a little shy",
    "friendly and chatty",
    "dry and factual",
    "enthusiastic",
    "hesitant",
    "precise",
    "casual",
    "worried",
    "businesslike",
)
_HABITS = (
    "with short sentences",
    "with long sentences",
    "in lower case",
    "with the background first and the request last",
    "with the request first and the reason after it",
    "as a list of points",
    "with an occasional typing error",
    "with simple words",
    "with the terms of the trade",
    "with a deadline in mind",
    "as if talking to a colleague",
    "as an instruction",
    "as a question",
)
STYLES: tuple[str, ...] = tuple(f"{tone}, {habit}" for tone in _TONES for habit in _HABITS)
"""Ways of writing."""

EXPERTISE: tuple[str, ...] = ("novice", "practitioner", "expert")
