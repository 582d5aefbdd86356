package launch

// spark starts the master or a worker of a standalone Spark cluster, or a driver in it
// (spark.apache.org/docs/latest/spark-standalone.html; its scripts call spark-class). The Python processes of an
// executor inherit the environment of their worker, as the tasks of Ray do.
var spark = Launcher{
	Name:     "Spark",
	Programs: []string{"spark-class", "spark-submit", "start-master.sh", "start-worker.sh"},
	Starts:   clusterProcesses,
}
