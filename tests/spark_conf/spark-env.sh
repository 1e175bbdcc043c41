# As conf/spark, and with the classes that tests/spark_classes.py has archived. Java shares none where a folder of the class
# path has files, and Spark puts its folder of settings there: the JVM gets an empty one, and the log's settings by name.
. "$SPARK_CONF_DIR/../../conf/spark/spark-env.sh"
SPARK_SUBMIT_OPTS="$SPARK_SUBMIT_OPTS -Xlog:disable $SPARKSTORM_SPARK_CLASSES
-Dlog4j2.configurationFile=file:$SPARK_CONF_DIR/../../conf/spark/log4j2.properties"
SPARK_CONF_DIR="$SPARKSTORM_EMPTY_CONF"
