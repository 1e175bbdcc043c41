"""Settings of the programs on the hosts, and the ports that they take."""

from __future__ import annotations

# Ports of each kind of host, all fixed (docs/operations.md); executors of two drivers on a host
# take two of the block managers'
PORTS = {
    "redis": (6379,),
    "zk": (2181, 2888, 3888, 26379),
    "head": (7077,),
    "w": (7078, *range(7400, 7417)),
    "d": (7300, *range(7301, 7318)),
    "client": (),
}
# instead of those, where connections to the stores are encrypted
TLS_PORTS = {"redis": (6380,), "zk": (2281, 2888, 3888)}
# of each driver on each worker host, all of whose cores they take: what is lost with a host has
# room only there
SLOTS = 2
JAVA = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.io.tmpdir=/srv/tmp",
)
REDIS = """\
bind 0.0.0.0
{ports}
requirepass {password}
maxmemory 512mb
maxmemory-policy noeviction
appendonly yes
save ""
dir /srv
"""
# as docs/operations.md has them
REPLICATED = """\
masterauth {password}
min-replicas-to-write 1
min-replicas-max-lag 2
repl-diskless-sync-delay 0
"""
SENTINEL = """\
sentinel monitor {name} {address} 6379 2
sentinel auth-pass {name} {password}
sentinel down-after-milliseconds {name} 5000
sentinel failover-timeout {name} 10000
"""
REDIS_TLS = """\
port 0
tls-port 6380
tls-cert-file /srv/tls/server.pem
tls-key-file /srv/tls/server.key
tls-ca-cert-file /srv/tls/ca.pem"""
KEEPER = """\
dataDir=/srv/data
{ports}
admin.enableServer=false
tickTime=500
initLimit=20
syncLimit=10
maxSessionTimeout=120000
maxClientCnxns=0
4lw.commands.whitelist=ruok,srvr
{peers}"""
KEEPER_TLS = """\
secureClientPort=2281
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
ssl.keyStore.location=/srv/tls/server.pem
ssl.keyStore.type=PEM
ssl.trustStore.location=/srv/tls/ca.pem
ssl.trustStore.type=PEM
ssl.clientAuth=need
sslQuorum=true
ssl.quorum.keyStore.location=/srv/tls/server.pem
ssl.quorum.keyStore.type=PEM
ssl.quorum.trustStore.location=/srv/tls/ca.pem
ssl.quorum.trustStore.type=PEM"""
TLS_OPTIONS = (
    "storm.zookeeper.ssl.enable=true",
    "sparkstorm.tls.ca.file=/srv/tls/ca.pem",
    "sparkstorm.tls.certificate.file=/srv/tls/client.pem",
    "sparkstorm.tls.key.file=/srv/tls/client.key",
)
ASK = """\
import socket, ssl, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
if sys.argv[2] == "2281":
    context = ssl.create_default_context(cafile="/srv/tls/ca.pem")
    context.load_cert_chain("/srv/tls/client.pem", "/srv/tls/client.key")
    connection = context.wrap_socket(connection, server_hostname=sys.argv[1])
connection.sendall(b"srvr")
print(connection.recv(9999))
"""
ASK_SENTINEL = """\
import socket, sys
connection = socket.create_connection(("zk2.example", 26379), 5)
connection.sendall(b"SENTINEL GET-MASTER-ADDR-BY-NAME " + sys.argv[1].encode() + b"\\r\\n")
print(connection.recv(9999))
"""
SPARK = """\
spark.authenticate true
spark.authenticate.secret {secret}
spark.network.crypto.enabled true
spark.network.crypto.cipher AES/GCM/NoPadding
spark.executor.memory 512m
spark.cores.max {cores}
spark.executor.cores {slots}
spark.driver.memory 512m
spark.executor.extraJavaOptions {java}
spark.driver.extraJavaOptions {java}
spark.pyspark.python {python}
spark.python.daemon.module sparkstorm.driver.spark_daemon
spark.driver.port 7300
spark.driver.blockManager.port 7301
spark.blockManager.port 7400
"""
JOB = """\
name: {name}
topology: counted:build
arguments: {{gate: /srv/gate-{name}, per_second: {per_second}, parallelism: {workers}}}
topology.workers: {workers}
topology.cells: {cells}
topology.max.spout.pending: 2000
"""
