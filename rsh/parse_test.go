package rsh

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// These command lines were recorded or are documented, by caller. words splits its argument into one word per line.
func TestParseCallers(t *testing.T) {
	words := func(s string) []string { return strings.Split(strings.TrimSuffix(s, "\n"), "\n") }
	orted := `-mca ess "env" -mca ess_base_jobid "2664300544" -mca orte_node_regex "worker-[1:0-3]@0(4)" -mca ` +
		`orte_hnp_uri "2664300544.0;tcp://10.66.0.1:37425" -mca plm "rsh" --tree-spawn -mca pmix "^s1,s2"`
	tests := []struct {
		name string
		args []string
		want Invocation
	}{
		{"Open MPI 4.1.4", append([]string{"worker-1", " orted"}, strings.Fields(orted)...),
			Invocation{Host: "worker-1", Command: " orted " + orted}},
		{"Open MPI 4.1.4, agent named ssh, plm_rsh_args", append([]string{"-x", "-p", "12345", "host3", " orted"},
			strings.Fields(orted)...),
			Invocation{Host: "host3", Port: 12345, Command: " orted " + orted}},
		{"Open MPI 4.1.4, port= in the hostfile", append([]string{"worker-1", "-p", "2222", " orted"},
			strings.Fields(orted)...),
			Invocation{Host: "worker-1", Port: 2222, Command: " orted " + orted}},
		{"Open MPI 4.1.4 by absolute path",
			words("worker-1\n  PATH=/usr/bin:$PATH ; export PATH ; LD_LIBRARY_PATH=/usr/lib:${LD_LIBRARY_PATH:-} ; " +
				"export LD_LIBRARY_PATH ; /usr/bin/orted\n-mca\ness\n\"env\""),
			Invocation{Host: "worker-1",
				Command: `  PATH=/usr/bin:$PATH ; export PATH ; LD_LIBRARY_PATH=/usr/lib:${LD_LIBRARY_PATH:-} ; ` +
					`export LD_LIBRARY_PATH ; /usr/bin/orted -mca ess "env"`}},
		{"Open MPI 4, root's shell is sh",
			words("root@worker-1\n( test ! -r ./.profile || . ./.profile;\n orted\n-mca\nplm\n\"rsh\"\n)"),
			Invocation{Host: "worker-1", User: "root",
				Command: `( test ! -r ./.profile || . ./.profile;  orted -mca plm "rsh" )`}},
		{"Open MPI 4, shell probe", words("worker-1\necho $SHELL"),
			Invocation{Host: "worker-1", Command: "echo $SHELL"}},
		{"Open MPI 5.0.7", words("q5b\nPRTE_PREFIX=/usr;export " +
			"PRTE_PREFIX;LD_LIBRARY_PATH=/usr/lib:$LD_LIBRARY_PATH;export LD_LIBRARY_PATH;/usr/bin/prted\n" +
			"--prtemca\nplm\nssh\n--tree-spawn"),
			Invocation{Host: "q5b",
				Command: "PRTE_PREFIX=/usr;export PRTE_PREFIX;LD_LIBRARY_PATH=/usr/lib:$LD_LIBRARY_PATH;export " +
					"LD_LIBRARY_PATH;/usr/bin/prted --prtemca plm ssh --tree-spawn"}},
		{"MPICH 4.0.2 hydra",
			words("-x\nworker-1\n\"/usr/bin/hydra_pmi_proxy\"\n--control-port\nworker-0:41141\n--rmk\nuser\n" +
				"--launcher\nssh\n--launcher-exec\n/run/paiinit/bin/ssh\n--demux\npoll\n--pgid\n0\n--usize\n-2\n" +
				"--proxy-id\n1"),
			Invocation{Host: "worker-1",
				Command: `"/usr/bin/hydra_pmi_proxy" --control-port worker-0:41141 --rmk user --launcher ssh ` +
					`--launcher-exec /run/paiinit/bin/ssh --demux poll --pgid 0 --usize -2 --proxy-id 1`}},
		{"MPICH hydra, launcher rsh, user=", words("me@worker-1\n\"/usr/bin/hydra_pmi_proxy\"\n--proxy-id\n1"),
			Invocation{Host: "worker-1", User: "me", Command: `"/usr/bin/hydra_pmi_proxy" --proxy-id 1`}},
		{"Intel MPI", words("-q\n-x\nworker-1\n/opt/intel/bin//hydra_bstrap_proxy\n--upstream-host\nworker-0\n" +
			"--tree-width\n16\n/opt/intel/bin//hydra_pmi_proxy\n--usize\n-1"),
			Invocation{Host: "worker-1",
				Command: "/opt/intel/bin//hydra_bstrap_proxy --upstream-host worker-0 --tree-width 16 " +
					"/opt/intel/bin//hydra_pmi_proxy --usize -1"}},
		{"mpirun_rsh of MVAPICH 3.0, from its sources",
			words("-q\nworker-1\ncd /w; /usr/bin/env MPISPAWN_ARGC=1 /opt/bin/mpispawn 0"),
			Invocation{Host: "worker-1", Command: "cd /w; /usr/bin/env MPISPAWN_ARGC=1 /opt/bin/mpispawn 0"}},
		{"horovodrun, check",
			words("-o\nPasswordAuthentication=no\n-o\nStrictHostKeyChecking=no\nhost4\n-p\n12345\n-i\n/key\n-o\n" +
				"ConnectTimeout=10\ntrue"),
			Invocation{Host: "host4", Port: 12345, Command: "true"}},
		{"horovodrun, gloo", words("-o\nPasswordAuthentication=no\n-o\nStrictHostKeyChecking=no\nhost4\n-p\n12345\n" +
			"cd /examples > /dev/null 2>&1 ; env HOROVOD_RANK=3 HOSTNAME=host1 python train.py"),
			Invocation{Host: "host4", Port: 12345,
				Command: "cd /examples > /dev/null 2>&1 ; env HOROVOD_RANK=3 HOSTNAME=host1 python train.py"}},
		{"DeepSpeed, check", words("-o\nPasswordAuthentication=no\n-p\n2222\nworker-1\nhostname"),
			Invocation{Host: "worker-1", Port: 2222, Command: "hostname"}},
		{"DeepSpeed, master address", words("worker-1\nhostname -I"),
			Invocation{Host: "worker-1", Command: "hostname -I"}},
		{"pdsh", words("-oConnectTimeout=10\n-p\n12345\n-2\n-a\n-x\nworker-1\nexport K=\"V\"; cd /w; python -u -m " +
			"deepspeed.launcher.launch --node_rank=1"),
			Invocation{Host: "worker-1", Port: 12345,
				Command: `export K="V"; cd /w; python -u -m deepspeed.launcher.launch --node_rank=1`}},
		{"pdsh with a user", words("-oConnectTimeout=10\n-2\n-a\n-x\n-lroot\nworker-1\ndate"),
			Invocation{Host: "worker-1", User: "root", Command: "date"}},
		{"rsync -e ssh", words("-l\nuser\nworker-1\nrsync\n--server\n-vlogDtprze.iLsfxCIvu\n.\n/dst"),
			Invocation{Host: "worker-1", User: "user", Command: "rsync --server -vlogDtprze.iLsfxCIvu . /dst"}},
		{"scp over sftp", words("-x\n-oPermitLocalCommand=no\n-oClearAllForwardings=yes\n-oRemoteCommand=none\n" +
			"-oRequestTTY=no\n-p\n22\n-l\nroot\n-s\n--\nworker-1\nsftp"),
			Invocation{Host: "worker-1", User: "root", Port: 22, Subsystem: true, TTY: -1, Command: "sftp"}},
		{"scp -O", words("-x\n-oClearAllForwardings=yes\n--\nworker-1\nscp -t /dst"),
			Invocation{Host: "worker-1", Command: "scp -t /dst"}},
		{"git", words("-o\nSendEnv=GIT_PROTOCOL\nworker-1\ngit-upload-pack '/r.git'"),
			Invocation{Host: "worker-1", SendEnv: []string{"GIT_PROTOCOL"}, Command: "git-upload-pack '/r.git'"}},
		{"ansible", words("-C\n-o\nControlMaster=auto\n-o\nControlPersist=60s\n-o\nUser=\"root\"\n-o\n" +
			"ConnectTimeout=10\n-tt\nworker-1\n/bin/sh -c 'echo ~root && sleep 0'"),
			Invocation{Host: "worker-1", User: "root", TTY: 2, Command: "/bin/sh -c 'echo ~root && sleep 0'"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse(tt.args)
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}

func TestParseForms(t *testing.T) {
	tests := []struct {
		args string // words separated by "|"
		want Invocation
	}{
		{"h", Invocation{Host: "h"}},
		{"h|true", Invocation{Host: "h", Command: "true"}},
		{"h|a|b  c|", Invocation{Host: "h", Command: "a b  c "}},
		{"h||a", Invocation{Host: "h", Command: " a"}},
		{"h|-", Invocation{Host: "h", Command: "-"}},
		{"-p22|h", Invocation{Host: "h", Port: 22}},
		{"-p|22|h", Invocation{Host: "h", Port: 22}},
		{"-qxp22|h", Invocation{Host: "h", Port: 22}},
		{"-qxp|22|h|true", Invocation{Host: "h", Port: 22, Command: "true"}},
		{"h|-4qCp22|-lme|true|-p|9", Invocation{Host: "h", User: "me", Port: 22, Command: "true -p 9"}},
		{"-p|70000|h", Invocation{Host: "h"}},
		{"-p|x|h", Invocation{Host: "h"}},
		{"-oPort=2222|h", Invocation{Host: "h", Port: 2222}},
		{"-oport 2222|h", Invocation{Host: "h", Port: 2222}},
		{"-o|Port = 2222|h", Invocation{Host: "h", Port: 2222}},
		{"-o|User=me|h", Invocation{Host: "h", User: "me"}},
		{"-o|X=Port=1|h", Invocation{Host: "h"}},
		{"-oBatchMode=yes|-F|/f|-i|/k|-E|/log|-J|jump|-S|none|-W|x:1" +
			"|-w|0:0|-B|if|-b|1.2.3.4|-c|aes|-D|1|-e|none|-I|p11|-L|1:h:1|-m|mac|-O|exit|-Q|key|-R|1:h:1|-P|tag|h|true",
			Invocation{Host: "h", Command: "true", NoEscape: true, Unsupported: "-W"}},
		{"-AaCfGgKkMNnqsTtvXxYy1246|h",
			Invocation{Host: "h", NoStdin: true, Subsystem: true, TTY: 1, Unsupported: "-G"}},
		{"-V", Invocation{Version: true}},
		{"me@h|-V|true", Invocation{Version: true}},
		{"-t|h|top", Invocation{Host: "h", TTY: 1, Command: "top"}},
		{"-tt|h|-t|top", Invocation{Host: "h", TTY: 2, Command: "top"}},
		{"-T|h", Invocation{Host: "h", TTY: -1}},
		{"-o|RequestTTY=force|h", Invocation{Host: "h", TTY: 2}},
		{"-oRequestTTY no|h", Invocation{Host: "h", TTY: -1}},
		{"-e|none|h", Invocation{Host: "h", NoEscape: true}},
		{"-oEscapeChar=none|h", Invocation{Host: "h", NoEscape: true}},
		{"-L|1:h:1|h", Invocation{Host: "h", Unsupported: "-L"}},
		{"-L|1:h:1|h|true", Invocation{Host: "h", Command: "true", Unsupported: "-L"}},
		{"h|-D1080|true", Invocation{Host: "h", Command: "true", Unsupported: "-D"}},
		{"-R|1:h:1|-W|x:1|h|true", Invocation{Host: "h", Command: "true", Unsupported: "-R"}},
		{"-oLocalForward=1 h:1|h|true", Invocation{Host: "h", Command: "true", Unsupported: "LocalForward"}},
		{"-o|remoteforward 1 h:1|h", Invocation{Host: "h", Unsupported: "remoteforward"}},
		{"-oDynamicForward=1080|h", Invocation{Host: "h", Unsupported: "DynamicForward"}},
		{"-o|RemoteCommand=top -d 1|h", Invocation{Host: "h", Unsupported: "RemoteCommand"}},
		{"-oRemoteCommand=a|h|b", Invocation{Host: "h", Command: "b", Unsupported: "RemoteCommand"}},
		{"-oRemoteCommand None|h|b", Invocation{Host: "h", Command: "b"}},
		{"-oRemoteCommand=|h|b", Invocation{Host: "h", Command: "b"}},
		{"-o|SetEnv=A=1 B=\"x  y\"'z'|h", Invocation{Host: "h", SetEnv: []string{"A=1", "B=x  yz"}}},
		{"-o|SetEnv A=1=2|-oSetEnv=B=2|h", Invocation{Host: "h", SetEnv: []string{"A=1=2"}}},
		{"-o|setenv = A= \t B=\"|h", Invocation{Host: "h", SetEnv: []string{"A=", "B="}}},
		{"-oSendEnv=LANG  LC_*|-o|SendEnv FOO|h", Invocation{Host: "h", SendEnv: []string{"LANG", "LC_*", "FOO"}}},
		{"-oSendEnv=LANG LC_* FOO|-oSendEnv=-L* BAR|h", Invocation{Host: "h", SendEnv: []string{"FOO", "BAR"}}},
		{"-oUser=\"a b\"|-l|me|you@h", Invocation{Host: "h", User: "a b"}},
		{"-lme|you@h", Invocation{Host: "h", User: "me"}},
		{"-oUser|h", Invocation{Host: "h"}},
		{"-fN|-D|1080|h", Invocation{Host: "h", NoStdin: true, Unsupported: "-N"}},
		{"-Z|-zZ9|--long|--long=x|h|-Z|true", Invocation{Host: "h", Command: "true"}},
		{"-n|h|cat", Invocation{Host: "h", NoStdin: true, Command: "cat"}},
		{"--|h|-n|cat", Invocation{Host: "h", Command: "-n cat"}},
		{"h|--|-n|cat", Invocation{Host: "h", Command: "-n cat"}},
		{"h|-q|--|cat", Invocation{Host: "h", Command: "cat"}},
		{"--|-h|cat", Invocation{Host: "-h", Command: "cat"}},
		{"me@h|true", Invocation{Host: "h", User: "me", Command: "true"}},
		{"me@dom@h|true", Invocation{Host: "h", User: "me@dom", Command: "true"}},
		{"@h|true", Invocation{Host: "h", Command: "true"}},
		{"::1|true", Invocation{Host: "::1", Command: "true"}},
		{"[::1]|true", Invocation{Host: "::1", Command: "true"}},
		{"me@[fe80::1%eth0]|true", Invocation{Host: "fe80::1%eth0", User: "me", Command: "true"}},
		{"me@fd00::2|true", Invocation{Host: "fd00::2", User: "me", Command: "true"}},
		{"[::1|true", Invocation{Host: "[::1", Command: "true"}},
		{"h:22|true", Invocation{Host: "h:22", Command: "true"}},
		{"ssh://me@h:22/|true", Invocation{Host: "h", User: "me", Port: 22, Command: "true"}},
		{"ssh://[::1]:22|true", Invocation{Host: "::1", Port: 22, Command: "true"}},
		{"ssh://h|true", Invocation{Host: "h", Command: "true"}},
		{"h.example.org.|true", Invocation{Host: "h.example.org.", Command: "true"}},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			got, err := Parse(strings.Split(tt.args, "|"))
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
	for _, args := range [][]string{
		nil, {}, {"-x"}, {"-p"}, {"-p", "22"}, {"--"}, {""}, {"me@"}, {"@"}, {"[]"}, {"ssh://"}, {"-o", "h"},
	} {
		_, err := Parse(args)
		require.EqualError(t, err,
			"no HOST given", "%q", args)
	}
}

// Parse reads SetEnv, SendEnv and User as OpenSSH's own client does (ssh -G prints its reading).
func TestParseEnvironmentAsOpenSSH(t *testing.T) {
	client, err := exec.LookPath("ssh")
	if err != nil {
		missing(t, "no ssh")
	}
	for _, line := range []string{
		"-oSetEnv=A=1 B=\"x  y\"", "-oSetEnv A=1=2|-oSetEnv=B=2", "-oSetEnv = A=", "-oSetEnv='A=b c'\"d\"",
		"-oSendEnv=LANG  LC_*|-oSendEnv FOO", "-oSendEnv=LANG LC_* FOO|-oSendEnv=-L* BAR",
		"-oSendEnv=A B AB|-oSendEnv=-?",
		"-oUser=\"a\"|-lb", "-la|-oUser=b", "-la",
	} {
		args := append([]string{"-F", "none", "-G"}, strings.Split(line, "|")...)
		out, err := exec.Command(client, append(args, "c@h")...).Output()
		require.NoError(t, err, line)
		var want Invocation
		for line := range strings.Lines(string(out)) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			switch key {
			case "user":
				want.User = value
			case "setenv":
				want.SetEnv = append(want.SetEnv, value)
			case "sendenv":
				want.SendEnv = append(want.SendEnv, value)
			}
		}
		got, err := Parse(append(args, "c@h"))
		require.NoError(t, err)
		require.Equal(t, want, Invocation{User: got.User, SetEnv: got.SetEnv, SendEnv: got.SendEnv}, line)
	}
}

func TestEnvironment(t *testing.T) {
	inv := Invocation{SendEnv: []string{"LC_*", "FO?", "["}, SetEnv: []string{"LC_A=2", "X="}}
	require.Equal(t, []string{"LC_A=1", "FOO=a=b", "LC_A=2", "X="},
		inv.environment([]string{"LC_A=1", "XLC_B=1", "FOO=a=b", "FOOO=1", "[=1"}))
	require.Empty(t, (&Invocation{}).environment([]string{"A=1"}))
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"worker-1\x00 orted\x00-mca\x00ess\x00\"env\"", "-x\x00-p\x0022\x00me@h\x00-p\x001\x00true", "-oA=b\x00--\x00h",
		"ssh://u@[::1]:22",
		"-o\x00user", "-\x00-", "[", "@", "--x\x00h\x00--\x00-p",
		"-o\x00SetEnv=A=\"b c\"\x00-oSendEnv=[\x00-oSendEnv -[\x00h",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		args := strings.Split(in, "\x00") // an argument cannot hold this byte
		inv, err := Parse(args)
		if err != nil {
			require.Zero(t, inv)
			return
		}
		if inv.Version {
			require.Equal(t, Invocation{Version: true}, inv)
			return
		}
		require.NotEmpty(t, inv.Host)
		require.True(t, strings.HasSuffix(strings.Join(args, " "), inv.Command))
		require.LessOrEqual(t, inv.Port, 65535)

		// The words from the first non-option after the host on come through unchanged.
		again, err := Parse(append([]string{"-x", "-oA=b", "h", "-q", "cmd"}, args...))
		require.NoError(t, err)
		require.Equal(t, Invocation{Host: "h", Command: "cmd " + strings.Join(args, " ")}, again)
	})
}
