package launch

import (
	"bytes"
	"io/fs"
	"path"
	"strings"
)

const (
	// maxScript is the size up to which a file among the arguments of a command is searched.
	maxScript = 1 << 20
	// maxWords is the number of words of a command's arguments that are tried as names of files.
	maxWords = 256
)

// HorovodInterface is the option of horovodrun that chooses its network. [Texts.Settled] takes it as a variable's name.
const HorovodInterface = "--network-interface"

// Places are where the user of a job may have chosen the networks of a launcher or library.
type Places struct {
	// Environ is the environment of the command, without what this package adds.
	Environ []string
	// Args is the command with its arguments, and Command the path of its program.
	Args    []string
	Command string
	// Dir is the working directory of the command.
	Dir string
	// Launcher is the path of the mpirun that the command would find, links resolved; "" if there is none.
	Launcher string
	// Root is the root of the file system.
	Root fs.FS
}

// settings has a line for each variable of ours that chooses a network: the names under which a user makes that choice.
const settings = `
OMPI_MCA_btl_tcp_if_include btl_tcp_if_include btl_tcp_if_exclude
OMPI_MCA_oob_tcp_if_include oob_tcp_if_include oob_tcp_if_exclude
PRTE_MCA_prte_if_include prte_if_include prte_if_exclude oob_tcp_if_include oob_tcp_if_exclude
HYDRA_IFACE HYDRA_IFACE -iface
I_MPI_HYDRA_IFACE I_MPI_HYDRA_IFACE -iface
HOROVOD_GLOO_IFACE HOROVOD_GLOO_IFACE --network-interface --network-interfaces
NCCL_SOCKET_IFNAME NCCL_SOCKET_IFNAME --network-interface --network-interfaces
GLOO_SOCKET_IFNAME GLOO_SOCKET_IFNAME
TP_SOCKET_IFNAME TP_SOCKET_IFNAME
NCCL_IB_HCA NCCL_IB_HCA
NCCL_IB_DISABLE NCCL_IB_DISABLE
UCX_NET_DEVICES UCX_NET_DEVICES
UCX_TLS UCX_TLS
UCX_CONFIG_DIR UCX_NET_DEVICES
` + HorovodInterface + " btl_tcp_if_include btl_tcp_if_exclude\n" // Horovod passes it on to mpirun as such

// Texts are what [Places.Texts] has found: each text behind the name of its place.
type Texts []string

// Settled says which choice of the user's a variable would contradict or overrule, and its place; "" if there is none.
// Open MPI refuses interfaces to include beside interfaces to exclude, even empty ones, and prefers the environment to
// its files. The variable itself in the environment does not count: [Merge] keeps the user's value.
func (t Texts) Settled(variable string) string {
	_, after, _ := strings.Cut(settings, "\n"+variable+" ")
	line, _, _ := strings.Cut(after, "\n")
	for _, setting := range strings.Fields(line) {
		for i := 0; i < len(t); i += 2 {
			if t[i] != theVariable+variable && mentions(t[i+1], setting) {
				return setting + " is in " + t[i]
			}
		}
	}
	return ""
}

// theVariable begins the name of a text that is one of the environment.
const theVariable = "the variable "

// mentions says whether a text chooses something for a setting, and not in a line that is a comment: the name of a
// parameter or option as a whole word, and the name of a variable where it gets a value. `-x NAME` and $NAME only pass
// on or read what the variable has.
func mentions(text, setting string) bool {
	for {
		before, after, found := strings.Cut(text, setting)
		if !found {
			return false
		}
		line := strings.TrimLeft(before[strings.LastIndexByte(before, '\n')+1:], " \t")
		end := strings.TrimLeft(after, "\"'] \t")
		value := strings.HasPrefix(end, "=") && !strings.HasPrefix(end, "==") && !strings.HasSuffix(line, "$") &&
			!strings.HasSuffix(line, "${")
		switch {
		case strings.HasPrefix(line, "#"):
			_, after, _ = strings.Cut(after, "\n")
		case isWord(after, 0):
		case strings.HasSuffix(line, "_MCA_") && value,
			!isWord(line, len(line)-1) && (value || setting[0] < 'A' || setting[0] > 'Z'):
			return true
		}
		text = after
	}
}

// isWord says whether a byte of s belongs to a name.
func isWord(s string, i int) bool {
	if i < 0 || i >= len(s) {
		return false
	}
	c := s[i]
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_'
}

// The files in which launchers and libraries look for settings: of a user, under ~, and of a directory of
// configuration.
const (
	homeFiles = " ~/.openmpi/mca-params.conf ~/.prte/mca-params.conf ~/.nccl.conf ~/ucx.conf ~/.mpiexec.hydra.conf "
	confFiles = " ~/openmpi-mca-params.conf ~/openmpi-mca-params-override.conf ~/prte-mca-params.conf" +
		" ~/mpiexec.hydra.conf ~/nccl.conf ~/ucx/ucx.conf "
	// confVariables name such files.
	confVariables = "NCCL_CONF_FILE HYDRA_CONFIG_FILE OMPI_MCA_mca_base_param_files OMPI_MCA_mca_param_files" +
		" OMPI_MCA_mca_base_envar_file_prefix PRTE_MCA_mca_base_param_files"
)

// Texts reads the environment, the arguments, the scripts among them, and the files in which launchers and libraries
// look for settings. Only regular files are opened.
func (p *Places) Texts() Texts {
	var texts Texts
	for _, kv := range p.Environ {
		name, _, _ := strings.Cut(kv, "=")
		texts = append(texts, theVariable+name, kv)
	}
	args := strings.Join(p.Args, "\n")
	texts = append(texts, "the arguments of the command", args)

	get := func(variable string) string {
		value, _ := lookupEnv(p.Environ, variable)
		return value
	}
	// mpirun may be a script of the image's. Debian and Fedora have the configuration outside of its prefix.
	names := p.Command + " " + p.Launcher + " " + p.Dir + "/ucx.conf" + strings.ReplaceAll(homeFiles, "~", get("HOME"))
	dirs := "/etc " + get("OPAL_PREFIX") + "/etc "
	prefix := path.Join(p.Launcher, "../..")
	if p.Launcher == "" || prefix == "/usr" || strings.HasPrefix(prefix, "/usr/lib") {
		dirs += "/etc/openmpi /etc/openmpi-x86_64 /etc/openmpi-aarch64 "
	}
	dirs += prefix + "/etc"
	for _, variable := range strings.Fields(confVariables) {
		names += " " + get(variable)
	}
	dir, previous := p.Dir, ""
	words := strings.FieldsFunc(args, betweenNames)
	for _, word := range words[:min(len(words), maxWords)] {
		name := word
		if !path.IsAbs(name) {
			name = path.Join(dir, name)
		}
		names += " " + name
		switch {
		case previous == "cd":
			dir = name
		case strings.HasSuffix(previous, "-prefix"):
			dirs += " " + name + "/etc"
		case path.IsAbs(word) && IsLauncher(word):
			dirs += " " + path.Join(name, "../../etc")
		}
		previous = word
	}
	for _, dir := range strings.Fields(dirs) {
		names += strings.ReplaceAll(confFiles, "~", dir)
	}
	for _, name := range strings.FieldsFunc(names, betweenNames) {
		if text := p.read(name); text != "" {
			texts = append(texts, name, text)
		}
	}
	return texts
}

// betweenNames says whether a character of a command line can stand between two names of files.
func betweenNames(r rune) bool { return strings.ContainsRune(" \t\n\r;&|()<>'\"=,:", r) }

// read returns the text of a regular file, "" if it is none, or too big for a script, or no text.
func (p *Places) read(name string) string {
	name = strings.TrimPrefix(path.Clean(name), "/")
	info, err := fs.Stat(p.Root, name)
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 || info.Size() > maxScript {
		return ""
	}
	b, _ := fs.ReadFile(p.Root, name)
	if bytes.IndexByte(b, 0) >= 0 {
		return ""
	}
	return string(b)
}
