# Sourced by each bash that runs a task's scripts, through BASH_ENV. There is no network, and what the scripts install
# is on this machine already, so the installers do nothing and what they would start is started as it is.
apt-get() { return 0; }
apt() { return 0; }
sudo() { "$@"; }
pip() { [ "${1-}" = install ] || command python3 -m pip "$@"; }
pip3() { pip "$@"; }
python3() { [ "${1-} ${2-} ${3-}" = "-m pip install" ] || command python3 "$@"; }
python() { python3 "$@"; }
curl() { case "$*" in *astral.sh/uv*) _have_uv ;; *) command curl "$@" ;; esac; }
wget() { case "$*" in *astral.sh/uv*) _have_uv ;; *) command wget "$@" ;; esac; }
_have_uv() { mkdir -p "$HOME/.local/bin" && : > "$HOME/.local/bin/env"; }
uv() {
    case "${1-}" in
        run) shift; _run_without_options "$@" ;;
        tool) shift 2; _run_without_options "$@" ;;
        venv) for _name in "$@"; do :; done
            [ $# -gt 1 ] || _name=.venv
            mkdir -p "$_name/bin" && : > "$_name/bin/activate" ;;
    esac
}
uvx() { _run_without_options "$@"; }
_run_without_options() {
    while [ $# -gt 0 ]; do
        case "${1-}" in
            -p | --python | -w | --with | --from | --index-url | --directory | --project) shift 2 ;;
            --) shift; break ;;
            -*) shift ;;
            *) break ;;
        esac
    done
    local program=${1%%[@=<>]*}
    shift
    "$program" "$@"
}
# An image may have uv already. Only tests are told so in any case, because what others make is kept with the run.
[ -z "${TEST_DIR-}" ] || [ -e "$HOME/.local/bin/env" ] || _have_uv
