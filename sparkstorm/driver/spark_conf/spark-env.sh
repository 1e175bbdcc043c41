# Read by spark-submit (bash) before it starts the JVM. Spark's launcher adds an incubator module to every JVM, whose
# start then prints one line of warning that no setting turns off: it is taken out of stderr here.
exec 2> >(trap '' INT TERM; exec grep --line-buffered -v '^WARNING: Using incubator modules: jdk.incubator.vector$' >&2)
