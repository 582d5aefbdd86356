package launch

import (
	"slices"
	"strconv"
	"strings"
)

// ExpandAzureWords replaces the words that stand for values in Azure ML job specifications, because no shell does so if
// they are written without "$" or in the exec form: `--hostfile AZUREML_MPI_HOSTFILE --nnodes=$WORLD_SIZE`. It changes
// only whole arguments, and the text after the "=" of an option. WORLD_SIZE is the number of ranks, unless the
// environment sets it. replaced names the arguments that changed, with the values.
func ExpandAzureWords(args, environ []string, size int) (expanded []string, replaced []Var) {
	expanded = slices.Clone(args)
	environ = append(slices.Clip(environ), "WORLD_SIZE="+strconv.Itoa(size))
	for i, a := range args {
		option, value := "", a
		if name, given, ok := strings.Cut(a, "="); ok && strings.HasPrefix(a, "-") {
			option, value = name+"=", given
		}
		word := azureWord(value)
		v := Value(environ, word)
		if i == 0 || v == "" || word == a && namesVariable(args, i) {
			continue
		}
		expanded[i] = option + v
		replaced = append(replaced, Var{Name: a, Value: v})
	}
	return expanded, replaced
}

// azureWord returns the word W if s is W, $W or ${W}, else "".
func azureWord(s string) string {
	word, dollar := strings.CutPrefix(s, "$")
	if dollar && strings.HasPrefix(word, "{") && strings.HasSuffix(word, "}") {
		word = word[1 : len(word)-1]
	}
	switch word {
	case "AZUREML_MPI_HOSTFILE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE":
		return word
	}
	return ""
}

// namesVariable reports whether args[i] names a variable that an MPI launcher passes on: `-x MASTER_ADDR`.
func namesVariable(args []string, i int) bool {
	if name, _ := Called(args); !IsLauncher(name) {
		return false
	}
	switch args[i-1] {
	case "-x", "--x", "-env", "--env", "-genv", "--genv", "-envlist", "--envlist", "-genvlist", "--genvlist":
		return true
	}
	return false
}
