"""The words that topics are made of."""


def split(text: str) -> tuple[str, ...]:
    """Return the parts of a text that `|` separates, with single spaces."""
    return tuple([" ".join(part.split()) for part in text.split("|")])


ACTIVITIES = split(
    "Adjusting|Aligning|Approving|Archiving|Auditing|Balancing|Benchmarking|Budgeting|Cataloguing|Checking|"
    "Clarifying|Classifying|Cleaning up|Collecting|Comparing|Consolidating|Converting|Coordinating|Correcting|"
    "Counting|Cross-checking|Delegating|Describing|Designing|Digitising|Distributing|Documenting|Drafting|"
    "Estimating|Explaining|Exporting|Extending|Filtering|Forecasting|Formatting|Grouping|Harmonising|Importing|"
    "Indexing|Inspecting|Introducing|Investigating|Labelling|Linking|Localising|Logging|Maintaining|Mapping|"
    "Measuring|Merging|Migrating|Modelling|Monitoring|Negotiating|Organising|Outsourcing|Planning|Preparing|"
    "Pricing|Prioritising|Proofreading|Protecting|Publishing|Ranking|Reconciling|Recovering|Redesigning|"
    "Reducing|Renaming|Renewing|Replacing|Reporting on|Reviewing|Rewriting|Rolling out|Routing|Sampling|"
    "Scheduling|Searching|Securing|Sharing|Simplifying|Sorting|Splitting|Standardising|Storing|Summarising|"
    "Surveying|Testing|Tracking|Transferring|Translating|Updating|Validating|Visualising|Withdrawing"
)
QUALIFIERS = split(
    "annual|anonymous|archived|automated|bilingual|branch-level|cancelled|certified|confidential|contested|"
    "cross-border|daily|damaged|delayed|disputed|donated|duplicate|early-morning|educational|emergency|encrypted|"
    "experimental|expired|external|failed|first-time|flexible|fragile|frequent|frozen|handwritten|high-value|"
    "historical|hourly|imported|incomplete|industrial|informal|inherited|internal|joint|last-minute|leased|legacy|"
    "licensed|local|long-term|low-cost|mandatory|manual|missing|mobile|monthly|municipal|nightly|offline|"
    "on-site|open|optional|outdated|overdue|overnight|overseas|part-time|pending|perishable|preliminary|printed|"
    "private|provisional|public|quarterly|recurring|refurbished|regional|rejected|remote|rented|reserved|returned|"
    "rural|scanned|seasonal|second-hand|shared|short-notice|signed|sponsored|temporary|third-party|unpaid|"
    "unsorted|urgent|verified|volunteer|weekly|wholesale"
)
THINGS = split(
    "access rights|account statements|address books|allergy lists|appointment slots|assembly guides|asset tags|"
    "attendance sheets|audit trails|backup copies|bank transfers|bills of material|boarding passes|booking forms|"
    "budget lines|building permits|calibration records|car pools|case notes|catalogue entries|charging points|"
    "checklists|class rosters|claims|cleaning rounds|code reviews|cold chains|commission rates|complaint letters|"
    "conference rooms|contact lists|contracts|course outlines|credit notes|customs papers|dashboards|"
    "delivery notes|deposit slips|discount codes|display panels|donor records|duty rosters|energy readings|"
    "equipment loans|evaluation forms|event calendars|exam results|expense reports|field notes|fire drills|"
    "fleet logs|floor plans|forecast models|freight quotes|fuel cards|garden plots|gift vouchers|glossaries|"
    "grant proposals|"
    "guest lists|handover notes|help articles|herd registers|hiring plans|holiday requests|incident reports|"
    "ingredient lists|inspection dates|insurance policies|interview guides|inventory counts|invoices|job adverts|"
    "key figures|laboratory samples|lease agreements|ledger entries|lesson plans|library loans|licence keys|"
    "lost-property items|loyalty points|mailing lists|maintenance windows|meal plans|measurement series|"
    "medication charts|meeting minutes|membership fees|menu cards|meter readings|museum exhibits|newsletter issues|"
    "onboarding steps|opening hours|order forms|packing lists|parking permits|parts catalogues|password policies|"
    "patient files|pay slips|performance figures|phone directories|photo archives|pick lists|postal codes|"
    "price lists|print runs|product labels|project plans|purchase orders|quality certificates|questionnaires|"
    "quotations|recall notices|recipes|refund requests|release notes|rehearsal dates|renovation budgets|"
    "repair tickets|research data|return labels|risk registers|route sheets|safety briefings|sales targets|"
    "seating charts|sensor logs|service contracts|shift swaps|shipping labels|shopping baskets|sign-up sheets|"
    "site visits|spare parts|speaker notes|staff surveys|stock levels|storage boxes|style guides|subscriptions|"
    "supplier ratings|support tickets|survey answers|tax returns|team budgets|tenant requests|test protocols|"
    "ticket sales|time sheets|tool kits|tour schedules|trade-fair leads|training hours|transcripts|travel claims|"
    "tree surveys|tuition fees|user manuals|vaccination records|vehicle checks|visitor passes|voucher batches|"
    "waiting lists|warehouse bins|warranty cases|waste permits|water samples|web forms|work permits|yard sales"
)
LINKS = ("for", "in", "around", "within", "as part of", "alongside")
SETTINGS = split(
    "after a change of staff|after a merger|after a power cut|after the summer|ahead of an audit|at a new site|"
    "at short notice|before the winter|between two teams|by a single person|during a move|during the night shift|"
    "for newcomers|for several branches|in a family business|in a multilingual team|on a shoestring|on the road|"
    "over several years|under new rules|under time pressure|when budgets shrink|when nobody is on site|"
    "with an ageing system|with paper records|with part-time staff|with two suppliers|without a database|"
    "without extra staff|without the internet"
)
FILLERS = frozenset(
    split(
        "a|about|after|ahead|all|an|and|around|as|at|based|be|before|between|by|during|each|for|from|general|good|how|"
        "in|into|is|its|more|new|of|off|on|or|our|over|part|related|several|short|some|than|that|the|their|them|this|"
        "to|under|up|use|used|using|via|what|when|which|while|with|within|without"
    )
)
"""Filler words, which are not specific to a topic."""
