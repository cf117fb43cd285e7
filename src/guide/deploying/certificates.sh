#!/bin/sh
# Makes certificates for a cluster: sh certificates.sh DIR HOST...
#
# DIR is a directory for `--cluster-tls` of all processes, and HOST are the names and addresses of the scheduler. Whoever
# has these files belongs to the cluster. The CA's key is not kept: for other hosts, make all files again.
set -eu
umask 077
directory=$1
shift
hosts=
for host; do
    case $host in
    *[!0-9.]*) hosts=$hosts,DNS:$host ;;
    *) hosts=$hosts,IP:$host ;;
    esac
done
mkdir -p "$directory"
cd "$directory"
trap 'rm -f ca.key tls.csr openssl.cnf' EXIT
cat > openssl.cnf << END
[req]
distinguished_name = name
[name]
[ca]
basicConstraints = critical, CA:TRUE
[tls]
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = ${hosts#,}
END
request() { openssl req -config openssl.cnf -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes "$@"; }
request -x509 -extensions ca -days 365 -subj "/CN=rollstream CA" -keyout ca.key -out ca.crt
request -subj "/CN=rollstream" -keyout tls.key -out tls.csr
openssl x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -set_serial 1 -days 365 \
    -extfile openssl.cnf -extensions tls -out tls.crt
