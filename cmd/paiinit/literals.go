package main

import (
	"log/slog"
	"slices"
	"strconv"
)

// literals replaces the words of the Azure ML job specification that stand for values and were written without a "$":
// `--hostfile AZUREML_MPI_HOSTFILE --node_rank NODE_RANK`. Only whole arguments are; nothing else of a command line ever changes.
// WORLD_SIZE is the number of ranks where the environment does not say otherwise.
func literals(args, environ []string, size int, logger *slog.Logger) []string {
	args = slices.Clone(args)
	environ = append(slices.Clip(environ), "WORLD_SIZE="+strconv.Itoa(size))
	for i, a := range args {
		switch a {
		case "AZUREML_MPI_HOSTFILE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE":
			if v := lookup(environ, a); v != "" && i > 0 {
				logger.Info("a literal word of the Azure ML job specification stands for its value", "phase", "launch", "word", a, "value", v)
				args[i] = v
			}
		}
	}
	return args
}
