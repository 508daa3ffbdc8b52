"""`treadle skills trust`: say that a skill may be used."""

from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.skills.find import Folders, SkillName, find_skill
from treadle.cli.terminal.output import print_note
from treadle.knowledge.trusted_files import Trust, record_trust

EXAMPLES = (
    "treadle skills trust csv-report --skills ./skills",
    "treadle skills trust csv-report --skills ./skills --revoke",
)


def trust(
    name: SkillName,
    skills: Folders = None,
    is_only_allowed: Annotated[
        bool,
        typer.Option(
            "--allow", help="Only allow its use: the model gets its text as data and not as instructions."
        ),
    ] = False,
    is_revoked: Annotated[
        bool, typer.Option("--revoke", help="Take the trust back, so that you are asked again.")
    ] = False,
) -> int:
    """Trust a skill with its present content. If the content changes, you are asked again."""
    skill = find_skill(name, skills)
    given = Trust.UNTRUSTED if is_revoked else Trust.ALLOWED if is_only_allowed else Trust.TRUSTED
    record_trust("skill", skill.digest, given, skill.name)
    print_note(f"{skill.name} in {skill.folder} is {skill.trust} (sha256 {skill.digest})")
    return ExitCode.DONE
