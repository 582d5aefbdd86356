package launch

import (
	"cmp"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// hintNames returns our variables that choose a network.
func hintNames() (vars []Var) {
	verbs := Fabric{Kind: FabricVerbs, Ports: []string{"mlx5_0:1"}, SamePorts: true, ConfigDir: "/run/paiinit"}
	tcp := Fabric{Kind: FabricTCP, Devices: true, Why: "why"}
	vars = Environment(everything)
	vars = append(vars, verbs.Job()...)
	vars = append(vars, verbs.Own()...)
	return append(vars, tcp.Job()...)
}

// settled returns the names of the variables that are left out, with the reason of the first.
func settled(p *Places) (names, reason string) {
	texts := p.Texts()
	var all []string
	for _, v := range hintNames() {
		why := texts.Settled(v.Name)
		if why != "" && !slices.Contains(all, v.Name) {
			all = append(all, v.Name)
		}
		reason = cmp.Or(reason, why)
	}
	return strings.Join(all, " "), reason
}

func TestSettled(t *testing.T) {
	const (
		btl  = "OMPI_MCA_btl_tcp_if_include"
		oob  = "OMPI_MCA_oob_tcp_if_include"
		prte = "PRTE_MCA_prte_if_include"
		conf = "btl = ^openib\n  btl_tcp_if_exclude = lo,docker0\n"
	)
	for name, tt := range map[string]struct {
		places       Places
		files        map[string]string
		want, reason string
	}{
		"nothing": {
			Places{Environ: []string{"HOME=/root", "OMPI_MCA_btl=^openib"}, Args: []string{"mpirun", "a.out"}},
			nil, "", ""},
		"in the environment": {
			Places{Environ: []string{"OMPI_MCA_btl_tcp_if_exclude="}}, nil, btl,
			"btl_tcp_if_exclude is in the variable OMPI_MCA_btl_tcp_if_exclude"},
		"the same variable in the environment": {
			Places{Environ: []string{"OMPI_MCA_btl_tcp_if_include=eth1", "NCCL_SOCKET_IFNAME=eth1"}}, nil, "", ""},
		"in arguments that the environment holds": {
			Places{Environ: []string{"MPIRUN_ARGS=-mca oob_tcp_if_include ib0"}}, nil, oob + " " + prte,
			"oob_tcp_if_include is in the variable MPIRUN_ARGS"},
		"in the arguments": {
			Places{Args: []string{"mpirun", "--mca", "btl_tcp_if_exclude", "docker0", "a.out"}}, nil, btl,
			"btl_tcp_if_exclude is in the arguments of the command"},
		"in the program text of a shell": {
			Places{Args: []string{"sh", "-c", "mpirun -gmca prte_if_exclude docker0 a.out"}}, nil, prte,
			"prte_if_exclude is in the arguments of the command"},
		"in a script": {
			Places{Args: []string{"bash", "train.sh"}, Dir: "/job"},
			map[string]string{"job/train.sh": "#!/bin/sh\nmpirun -mca btl_tcp_if_exclude lo,docker0 a.out\n"}, btl,
			"btl_tcp_if_exclude is in /job/train.sh"},
		"in a script that PATH holds": {
			Places{Args: []string{"train"}, Dir: "/job", Command: "/opt/bin/train"},
			map[string]string{"opt/bin/train": "export OMPI_MCA_btl_tcp_if_exclude=docker0; mpirun a.out\n"}, btl,
			"btl_tcp_if_exclude is in /opt/bin/train"},
		"in a script that a shell calls": {
			Places{Args: []string{"sh", "-c", "cd /job/a && ./train.sh; true"}, Dir: "/"},
			map[string]string{"job/a/train.sh": "mpirun -x NCCL_SOCKET_IFNAME=eth1 a.out\n"}, "NCCL_SOCKET_IFNAME",
			"NCCL_SOCKET_IFNAME is in /job/a/train.sh"},
		"in a Python program": {
			Places{Args: []string{"torchrun", "train.py"}, Dir: "/job"},
			map[string]string{"job/train.py": "os.environ['GLOO_SOCKET_IFNAME'] = 'eth1'\n"}, "GLOO_SOCKET_IFNAME",
			"GLOO_SOCKET_IFNAME is in /job/train.py"},
		"in a file of --tune": {
			Places{Args: []string{"mpirun", "--tune=/job/a.conf,b.conf", "a.out"}, Dir: "/job"},
			map[string]string{"job/b.conf": "-mca oob_tcp_if_exclude docker0\n"}, oob + " " + prte,
			"oob_tcp_if_exclude is in /job/b.conf"},
		"only read, or passed on": {
			Places{Args: []string{"sh", "-c", "mpirun -x NCCL_SOCKET_IFNAME -x OMPI_MCA_btl_tcp_if_include a.out\n" +
				`test "$GLOO_SOCKET_IFNAME" = "${TP_SOCKET_IFNAME}"; HYDRA_IFACE == I_MPI_HYDRA_IFACE`}}, nil, "", ""},
		"in a comment": {
			Places{Args: []string{"train.sh"}, Dir: "/"},
			map[string]string{"train.sh": "  # not btl_tcp_if_exclude\nmpirun a.out # btl_tcp_if\n"}, "", ""},
		"as a part of a word": {
			Places{Args: []string{"--net-iface", "MY_NCCL_SOCKET_IFNAME=1",
				"xbtl_tcp_if_exclude", "btl_tcp_if_excluded"}},
			nil, "", ""},
		"in a script that is too big": {
			Places{Args: []string{"train.sh"}, Dir: "/"},
			map[string]string{"train.sh": strings.Repeat(conf, maxScript/len(conf)+1)}, "", ""},
		"in a program that is no script": {
			Places{Args: []string{"a.out"}, Dir: "/"},
			map[string]string{"a.out": "\x7fELF\x00 btl_tcp_if_exclude"}, "", ""},
		"in the home directory": {
			Places{Environ: []string{"HOME=/root"}}, map[string]string{"root/.openmpi/mca-params.conf": conf}, btl,
			"btl_tcp_if_exclude is in /root/.openmpi/mca-params.conf"},
		"a user's include": {
			Places{Environ: []string{"HOME=/root"}},
			map[string]string{"root/.openmpi/mca-params.conf": "btl_tcp_if_include = ib0\noob_tcp_if_include = ib0\n"},
			oob + " " + btl + " " + prte, "oob_tcp_if_include is in /root/.openmpi/mca-params.conf"},
		"of Debian's mpirun": {
			Places{Launcher: "/usr/bin/orterun"}, map[string]string{"etc/openmpi/openmpi-mca-params.conf": conf}, btl,
			"btl_tcp_if_exclude is in /etc/openmpi/openmpi-mca-params.conf"},
		"of Fedora's mpirun": {
			Places{Launcher: "/usr/lib64/openmpi/bin/orterun"},
			map[string]string{"etc/openmpi-x86_64/openmpi-mca-params.conf": conf}, btl,
			"btl_tcp_if_exclude is in /etc/openmpi-x86_64/openmpi-mca-params.conf"},
		"of an mpirun with a prefix of its own": {
			Places{Launcher: "/opt/ompi/bin/mpirun"},
			map[string]string{"opt/ompi/etc/openmpi-mca-params.conf": conf}, btl,
			"btl_tcp_if_exclude is in /opt/ompi/etc/openmpi-mca-params.conf"},
		"of Debian's mpirun, where PATH has none": {
			Places{}, map[string]string{"etc/openmpi/openmpi-mca-params.conf": conf}, btl,
			"btl_tcp_if_exclude is in /etc/openmpi/openmpi-mca-params.conf"},
		"of another mpirun": {
			Places{Launcher: "/opt/ompi/bin/mpirun"},
			map[string]string{"etc/openmpi/openmpi-mca-params.conf": conf}, "", ""},
		"of an mpirun that is called by its path": {
			Places{Args: []string{"sh", "-c", "/opt/ompi/bin/mpirun a.out"}, Launcher: "/usr/bin/mpirun"},
			map[string]string{"opt/ompi/etc/openmpi-mca-params.conf": conf}, btl,
			"btl_tcp_if_exclude is in /opt/ompi/etc/openmpi-mca-params.conf"},
		"by --prefix": {
			Places{Args: []string{"mpirun", "--prefix", "/opt/ompi", "a.out"}, Launcher: "/usr/bin/mpirun"},
			map[string]string{"opt/ompi/etc/openmpi-mca-params.conf": conf}, btl,
			"btl_tcp_if_exclude is in /opt/ompi/etc/openmpi-mca-params.conf"},
		"by OPAL_PREFIX": {
			Places{Environ: []string{"OPAL_PREFIX=/opt/ompi"}},
			map[string]string{"opt/ompi/etc/openmpi-mca-params.conf": conf}, btl,
			"btl_tcp_if_exclude is in /opt/ompi/etc/openmpi-mca-params.conf"},
		"in an mpirun that is a script": {
			Places{Args: []string{"python3", "job.py"}, Dir: "/", Launcher: "/usr/local/bin/mpirun"},
			map[string]string{"usr/local/bin/mpirun": "#!/bin/bash\n" +
				"mpirun.real --mca btl_tcp_if_exclude lo,docker0 \"$@\"\n"},
			btl, "btl_tcp_if_exclude is in /usr/local/bin/mpirun"},
		"of PRRTE": {
			Places{Launcher: "/usr/bin/mpirun"},
			map[string]string{"etc/openmpi/prte-mca-params.conf": "prte_if_exclude = lo,docker0\n"}, prte,
			"prte_if_exclude is in /etc/openmpi/prte-mca-params.conf"},
		"another list of files": {
			Places{Environ: []string{"OMPI_MCA_mca_base_param_files=/a.conf:/b.conf"}},
			map[string]string{"b.conf": conf}, btl,
			"btl_tcp_if_exclude is in /b.conf"},
		"NCCL": {
			Places{}, map[string]string{"etc/nccl.conf": "NCCL_SOCKET_IFNAME=^docker0\n"}, "NCCL_SOCKET_IFNAME",
			"NCCL_SOCKET_IFNAME is in /etc/nccl.conf"},
		"NCCL, a file of another name": {
			Places{Environ: []string{"NCCL_CONF_FILE=/n"}},
			map[string]string{"n": "NCCL_IB_HCA=mlx5_1\nNCCL_IB_DISABLE=0"},
			"NCCL_IB_HCA NCCL_IB_DISABLE", "NCCL_IB_HCA is in /n"},
		"UCX": {
			Places{Environ: []string{"HOME=/root"}}, map[string]string{"root/ucx.conf": "UCX_NET_DEVICES=mlx5_1:1\n"},
			"UCX_CONFIG_DIR UCX_NET_DEVICES", "UCX_NET_DEVICES is in /root/ucx.conf"},
		"hydra": {
			Places{Args: []string{"mpiexec.hydra", "-iface", "ib0", "a.out"}}, nil, "HYDRA_IFACE I_MPI_HYDRA_IFACE",
			"-iface is in the arguments of the command"},
		"hydra, its file": {
			Places{Environ: []string{"HOME=/root"}}, map[string]string{"root/.mpiexec.hydra.conf": "-iface ib0"},
			"HYDRA_IFACE I_MPI_HYDRA_IFACE", "-iface is in /root/.mpiexec.hydra.conf"},
		"Horovod": {
			Places{Args: []string{"horovodrun", "--network-interface=ib0", "true"}},
			nil, "HOROVOD_GLOO_IFACE NCCL_SOCKET_IFNAME",
			"--network-interface is in the arguments of the command"},
	} {
		t.Run(name, func(t *testing.T) {
			root := make(fstest.MapFS)
			for name, text := range tt.files {
				root[name] = &fstest.MapFile{Data: []byte(text)}
			}
			tt.places.Root = root
			names, reason := settled(&tt.places)
			require.Equal(t, tt.want, names)
			require.Equal(t, tt.reason, reason)
		})
	}
}

// Only regular files are opened, because a pipe among the arguments would block the launch.
func TestSettledOpensRegularFilesOnly(t *testing.T) {
	root := notToBeOpened{fstest.MapFS{
		"pipe": {Data: []byte("btl_tcp_if_exclude"), Mode: fs.ModeNamedPipe | 0o600}, "job/x": {Data: []byte("x")},
	}}
	names, _ := settled(&Places{Args: []string{"sh", "/pipe", "/job", "/none", "../../..", ""}, Dir: "/", Root: root})
	require.Empty(t, names)
}

// notToBeOpened is a file system whose Open fails the test.
type notToBeOpened struct{ fstest.MapFS }

func (f notToBeOpened) Open(name string) (fs.File, error) { panic(name + " is opened") }

// A user can settle every variable that names a network at least by its own name.
func TestEveryNetworkHintHasSettings(t *testing.T) {
	for _, v := range Environment(everything) {
		if v.Value == everything.Network || v.Value == everything.Interface {
			name := strings.TrimPrefix(strings.TrimPrefix(v.Name, "OMPI_MCA_"), "PRTE_MCA_")
			require.NotEmpty(t, Texts{"a place", name + "=eth1"}.Settled(v.Name), v.Name)
		}
	}
	require.Equal(t, "btl_tcp_if_exclude is in a place",
		Texts{"a place", "-mca btl_tcp_if_exclude a"}.Settled(horovodInterface))
	require.Empty(t, Texts{"a place", "-mca OMPI_MCA_pml PATH"}.Settled("PATH"))
}
