# Join the image in `$0` and the layer of the folder `$1` in a mount that only the following command sees.
#
# Bubblewrap follows links to the places where it mounts, also out of the image, and makes what is missing there. So
# links are removed from the places that follow, up to a `--`. A place with a slash at its end is a folder. It is an
# error if the image itself has something else there.
layer=$1/work merged=$1/merged
mount -t overlay -o "lowerdir=$0,upperdir=$layer,workdir=$1/spare,userxattr" overlay "$merged" || exit 1
while shift && [ "$1" != -- ]; do
  place=${1%/}
  case $1 in
    */) [ -L "$merged$place" ] || { [ -e "$merged$place" ] && [ ! -d "$merged$place" ]; } || continue ;;
    *) [ -L "$merged$place" ] || continue ;;
  esac
  if [ "$1" != "$place" ] && [ ! -L "$layer$place" ] && [ ! -f "$layer$place" ]; then
    echo "nothing can be mounted below $place, which is a link or a file in the image" >&2
    exit 1
  fi
  rm -f "$merged$place" || exit 1
done
shift
exec "$@"
