package envspec

// matchSingle always matches: without any sign of a scheduler, the container is alone.
func matchSingle(*reader) string { return "default" }

func readSingle(r *reader, job *Job) {
	soleContainer(r, job, variable{name: "default"})
}
