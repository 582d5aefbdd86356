package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// These types have the fields of Kubernetes objects that the examples use; any other field is an error.
type (
	envVar struct {
		Name, Value string
		ValueFrom   struct {
			FieldRef struct {
				FieldPath string `yaml:"fieldPath"`
			} `yaml:"fieldRef"`
			SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	kubeContainer struct {
		Name, Image   string
		WorkingDir    string `yaml:"workingDir"`
		Command, Args []string
		Env           []envVar
		Resources     struct{ Limits map[string]string }
		VolumeMounts  []struct {
			Name      string
			MountPath string `yaml:"mountPath"`
			ReadOnly  bool   `yaml:"readOnly"`
		} `yaml:"volumeMounts"`
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		StartupProbe   *kubeProbe `yaml:"startupProbe"`
		LivenessProbe  *kubeProbe `yaml:"livenessProbe"`
		ReadinessProbe *kubeProbe `yaml:"readinessProbe"`
	}
	kubeProbe struct {
		HTTPGet          struct{ Path, Port string } `yaml:"httpGet"`
		PeriodSeconds    int                         `yaml:"periodSeconds"`
		FailureThreshold int                         `yaml:"failureThreshold"`
	}
	kubeVolume struct {
		Name   string
		Secret struct {
			SecretName string `yaml:"secretName"`
		}
		EmptyDir *struct{ Medium string } `yaml:"emptyDir"`
		Image    struct{ Reference string }
	}
	podTemplate struct {
		Metadata struct{ Labels map[string]string }
		Spec     struct {
			RestartPolicy  string `yaml:"restartPolicy"`
			Subdomain      string
			InitContainers []kubeContainer `yaml:"initContainers"`
			Containers     []kubeContainer
			Volumes        []kubeVolume
		}
	}
	replica struct {
		Replicas      int
		RestartPolicy string `yaml:"restartPolicy"`
		Template      podTemplate
	}
	serviceSpec struct {
		ClusterIP string `yaml:"clusterIP"`
		NotReady  bool   `yaml:"publishNotReadyAddresses"`
		Selector  map[string]string
		Ports     []struct{ Port int }
	}
	jobSpec struct {
		CompletionMode           string `yaml:"completionMode"`
		Completions, Parallelism int
		BackoffLimit             int `yaml:"backoffLimit"`
		Template                 podTemplate
	}
)

// pod returns the pod's only container with the environment of its template. fields has the values of the pod's fields.
func pod(t *testing.T, p podTemplate, fields map[string]string, environ ...string) started {
	t.Helper()
	require.Len(t, p.Spec.Containers, 1)
	c := p.Spec.Containers[0]
	s := started{environ: append(environ, "KUBERNETES_SERVICE_HOST=10.96.0.1"), files: fstest.MapFS{}}
	command := c.Command
	if command == nil && !strings.HasSuffix(c.Args[0], "/paiinit") { // else the image's own executes it
		command = entrypoint
	}
	s.argv = slices.Concat(command, c.Args)
	mounts := make(map[string]bool)
	for _, m := range c.VolumeMounts {
		mounts[m.MountPath] = true
		i := slices.IndexFunc(p.Spec.Volumes, func(v kubeVolume) bool { return v.Name == m.Name })
		require.GreaterOrEqual(t, i, 0, "no volume %s", m.Name)
		switch v := p.Spec.Volumes[i]; {
		case v.EmptyDir != nil && v.EmptyDir.Medium == "Memory":
			require.Equal(t, "/dev/shm", m.MountPath)
		case v.Secret.SecretName == "":
			require.Equal(t, programOn(t, p, v, m.MountPath), s.argv[0])
			require.True(t, m.ReadOnly)
		}
	}
	require.True(t, s.argv[0] == "paiinit" || len(mounts) > 1, "%s is on no volume", s.argv[0])
	for want, probe := range map[string]*kubeProbe{
		"startup /livez": c.StartupProbe, "liveness /livez": c.LivenessProbe, "readiness /readyz": c.ReadinessProbe,
	} {
		if _, path, _ := strings.Cut(want, " "); probe != nil {
			require.Equal(t, path, probe.HTTPGet.Path)
			require.Equal(t, c.Ports[0].Name, probe.HTTPGet.Port)
			require.Equal(t, 12345, c.Ports[0].ContainerPort)
			require.Contains(t, c.Env, envVar{Name: "PAIINIT_HTTP", Value: "1"})
		}
	}
	for _, v := range c.Env {
		switch {
		case v.ValueFrom.FieldRef.FieldPath != "":
			require.Contains(t, fields, v.ValueFrom.FieldRef.FieldPath)
			v.Value = fields[v.ValueFrom.FieldRef.FieldPath]
		case v.ValueFrom.SecretKeyRef.Key != "":
			v.Value = "of the Secret, long enough"
		case v.Name == secretVariable:
			require.Fail(t, "a secret in the file")
		case v.Name == "PAIINIT_SECRET_FILE":
			require.True(t, mounts[v.Value[:strings.LastIndexByte(v.Value, '/')]], "%s is not mounted", v.Value)
		}
		s.environ = append(s.environ, v.Name+"="+v.Value)
	}
	return s
}

// programOn returns the path at which a container that mounts v at dir finds paiinit: an init container has installed
// it there, or v is the image of a release.
func programOn(t *testing.T, p podTemplate, v kubeVolume, dir string) string {
	t.Helper()
	if v.Image.Reference != "" {
		return dir + "/paiinit"
	}
	require.NotNil(t, v.EmptyDir)
	require.Len(t, p.Spec.InitContainers, 1)
	from := p.Spec.InitContainers[0]
	require.Equal(t, []string{"/paiinit", "install", from.VolumeMounts[0].MountPath}, from.Command)
	require.Equal(t, v.Name, from.VolumeMounts[0].Name)
	require.False(t, from.VolumeMounts[0].ReadOnly)
	return dir + "/paiinit"
}

// named gives a pod its name, and the line of /etc/hosts that the kubelet writes for a pod of a headless Service.
func (s started) named(name, service string) started {
	s.environ = append(s.environ, "HOSTNAME="+name)
	if service != "" {
		line := fmt.Sprintf("10.244.1.5\t%s.%s.default.svc.cluster.local\t%s\n", name, service, name)
		s.files["etc/hosts"] = &fstest.MapFile{Data: []byte(line)}
	}
	return s
}

func kubernetesExample(t *testing.T, file string) []started {
	type object struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string
		Metadata   struct{ Name string }
		Spec       yaml.Node
	}
	services := make(map[string]map[string]string) // selector by name
	var list []started
	for _, o := range strictYAML[object](t, readExample(t, file)) {
		name := o.Metadata.Name
		spec, err := yaml.Marshal(&o.Spec)
		require.NoError(t, err)
		switch o.APIVersion + " " + o.Kind {
		case "v1 Service":
			s := strictYAML[serviceSpec](t, spec)[0]
			if len(s.Ports) > 0 { // for clients, who need ready pods
				require.False(t, s.NotReady)
				continue
			}
			require.Equal(t, "None", s.ClusterIP)
			require.True(t, s.NotReady)
			services[name] = s.Selector
		case "batch/v1 Job":
			job := strictYAML[jobSpec](t, spec)[0]
			require.Equal(t, "Indexed", job.CompletionMode)
			require.Equal(t, job.Completions, job.Parallelism)
			require.Equal(t, map[string]string{"job-name": name}, services[job.Template.Spec.Subdomain])
			for i := range job.Completions {
				list = append(list, pod(t, job.Template, nil, vars("JOB_COMPLETION_INDEX",
					i)...).named(fmt.Sprintf("%s-%d", name, i), job.Template.Spec.Subdomain))
			}
		case "jobset.x-k8s.io/v1alpha2 JobSet":
			set := strictYAML[struct {
				Network struct {
					Names    bool `yaml:"enableDNSHostnames"`
					NotReady bool `yaml:"publishNotReadyAddresses"`
				}
				Jobs []struct {
					Name     string
					Replicas int
					Template struct{ Spec jobSpec }
				} `yaml:"replicatedJobs"`
			}](t, spec)[0]
			require.True(t, set.Network.Names && set.Network.NotReady)
			require.Len(t, set.Jobs, 1)
			for k := range set.Jobs[0].Replicas {
				job := set.Jobs[0].Template.Spec
				for i := range job.Completions {
					fields := map[string]string{"metadata.labels['jobset.sigs.k8s.io/job-index']": fmt.Sprint(k)}
					s := pod(t, job.Template, fields, vars("JOB_COMPLETION_INDEX", i)...)
					list = append(list, s.named(fmt.Sprintf("%s-%s-%d-%d", name, set.Jobs[0].Name, k, i), name))
				}
			}
		case "apps/v1 StatefulSet":
			set := strictYAML[struct {
				ServiceName string `yaml:"serviceName"`
				Replicas    int
				Management  string `yaml:"podManagementPolicy"`
				Selector    struct {
					Labels map[string]string `yaml:"matchLabels"`
				}
				Template podTemplate
			}](t, spec)[0]
			require.Equal(t, "Parallel", set.Management) // or the second pod would wait for the first
			require.Equal(t, services[set.ServiceName], set.Template.Metadata.Labels)
			require.Equal(t, set.Selector.Labels, set.Template.Metadata.Labels)
			for i := range set.Replicas {
				list = append(list, pod(t, set.Template, nil).named(fmt.Sprintf("%s-%d", name, i), set.ServiceName))
			}
		case "kubeflow.org/v2beta1 MPIJob":
			list = append(list, mpiJobPods(t, name, spec)...)
		case "kubeflow.org/v1 PyTorchJob":
			job := strictYAML[struct {
				Processes string             `yaml:"nprocPerNode"`
				Specs     map[string]replica `yaml:"pytorchReplicaSpecs"`
			}](t, spec)[0]
			n := 0
			for _, r := range job.Specs {
				n += r.Replicas
			}
			for rank := range n {
				role, index := "Master", 0
				if rank > 0 {
					role, index = "Worker", rank-1
				}
				master := name + "-master-0"
				environ := vars("MASTER_ADDR", master, "PET_MASTER_ADDR", master, "MASTER_PORT", 23456,
					"RANK", rank, "PET_NODE_RANK", rank, "PET_NNODES", n)
				processes := 1
				if job.Processes != "" {
					var err error
					processes, err = strconv.Atoi(job.Processes)
					require.NoError(t, err)
					environ = append(environ, vars("PET_NPROC_PER_NODE", processes)...)
				}
				environ = append(environ, vars("WORLD_SIZE", processes*n)...)
				list = append(list, pod(t, job.Specs[role].Template, nil, environ...).named(fmt.Sprintf("%s-%s-%d",
					name, strings.ToLower(role), index), ""))
			}
		case "kubeflow.org/v1 TFJob":
			specs := strictYAML[struct {
				Specs map[string]replica `yaml:"tfReplicaSpecs"`
			}](t, spec)[0].Specs
			cluster := make(map[string][]string)
			for role, r := range specs {
				for i := range r.Replicas {
					role := strings.ToLower(role)
					cluster[role] = append(cluster[role], fmt.Sprintf("%s-%s-%d.default.svc:2222", name, role, i))
				}
			}
			for role, r := range specs {
				for i := range r.Replicas {
					text, err := json.Marshal(map[string]any{"cluster": cluster,
						"task": map[string]any{"type": strings.ToLower(role), "index": i}, "environment": "cloud"})
					require.NoError(t, err)
					list = append(list, pod(t, r.Template, nil, vars("TF_CONFIG", string(text))...))
				}
			}
		case "trainer.kubeflow.org/v1alpha1 TrainJob":
			job := strictYAML[struct {
				Runtime struct{ Name string } `yaml:"runtimeRef"`
				Trainer struct {
					Nodes         int `yaml:"numNodes"`
					Image         string
					Command, Args []string
					Env           []envVar
				}
			}](t, spec)[0]
			for i := range job.Trainer.Nodes {
				list = append(list, started{
					argv: slices.Concat(job.Trainer.Command, job.Trainer.Args),
					environ: vars("PET_NNODES", job.Trainer.Nodes, "PET_NPROC_PER_NODE", "auto", "PET_NODE_RANK", i,
						"JOB_COMPLETION_INDEX", i,
						"PET_MASTER_ADDR", fmt.Sprintf("%s-node-0-0.%s", name,
							name), "PET_MASTER_PORT", 29500, secretVariable, "of the Secret, long enough"),
				})
			}
		case "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet":
			set := strictYAML[struct {
				Replicas      int
				StartupPolicy string `yaml:"startupPolicy"`
				Template      struct {
					Size          int
					RestartPolicy string       `yaml:"restartPolicy"`
					Leader        *podTemplate `yaml:"leaderTemplate"`
					Worker        podTemplate  `yaml:"workerTemplate"`
				} `yaml:"leaderWorkerTemplate"`
			}](t, spec)[0]
			// With LeaderReady, the other pods are created when the leader is ready, and the leader waits for them.
			require.Contains(t, []string{"", "LeaderCreated"}, set.StartupPolicy)
			for i := range set.Template.Size { // one group
				template := set.Template.Worker
				if i == 0 && set.Template.Leader != nil {
					template = *set.Template.Leader
				}
				list = append(list, pod(t, template, nil, vars("LWS_LEADER_ADDRESS",
					name+"-0."+name+".default", "LWS_GROUP_SIZE", set.Template.Size,
					"LWS_WORKER_INDEX", i)...))
			}
		case "batch.volcano.sh/v1alpha1 Job":
			list = append(list, volcanoPods(t, name, spec)...)
		default:
			t.Fatalf("%s %s", o.APIVersion, o.Kind)
		}
	}
	return list
}

func mpiJobPods(t *testing.T, name string, spec []byte) []started {
	job := strictYAML[struct {
		Slots  int                `yaml:"slotsPerWorker"`
		Policy map[string]string  `yaml:"runPolicy"`
		Specs  map[string]replica `yaml:"mpiReplicaSpecs"`
	}](t, spec)[0]
	hostfile := ""
	var list []started
	for i := range job.Specs["Worker"].Replicas {
		worker := fmt.Sprintf("%s-worker-%d", name, i)
		hostfile += fmt.Sprintf("%s.%s.default.svc slots=%d\n", worker, name, job.Slots)
		require.NotEmpty(t, job.Specs["Worker"].Template.Spec.Containers[0].Args, "the operator would start sshd")
		if gpus := job.Specs["Worker"].Template.Spec.Containers[0].Resources.Limits["nvidia.com/gpu"]; gpus != "" {
			require.Equal(t, gpus, fmt.Sprint(job.Slots))
		}
		list = append(list, pod(t, job.Specs["Worker"].Template, nil, "K_MPI_JOB_ROLE=worker").named(worker, ""))
	}
	launcher := pod(t, job.Specs["Launcher"].Template, nil, "K_MPI_JOB_ROLE=launcher",
		"OMPI_MCA_orte_default_hostfile=/etc/mpi/hostfile").named(name+"-launcher", "")
	launcher.files["etc/mpi/hostfile"] = &fstest.MapFile{Data: []byte(hostfile)}
	list = append(list, launcher)
	for _, s := range list {
		s.files["root/.ssh/id_rsa"] = &fstest.MapFile{Data: []byte("key")}
	}
	return list
}

func volcanoPods(t *testing.T, name string, spec []byte) []started {
	type policy struct{ Event, Action string }
	job := strictYAML[struct {
		MinAvailable  int    `yaml:"minAvailable"`
		SchedulerName string `yaml:"schedulerName"`
		Plugins       map[string][]string
		Policies      []policy
		Tasks         []struct {
			Name     string
			Replicas int
			Policies []policy
			Template podTemplate
		}
	}](t, spec)[0]
	require.Contains(t, job.Plugins, "svc")
	require.Contains(t, job.Plugins, "ssh")
	var lists []string
	config := ""
	for _, task := range job.Tasks {
		var hosts []string
		for i := range task.Replicas {
			hosts = append(hosts, fmt.Sprintf("%s-%s-%d.%s", name, task.Name, i, name))
			config += fmt.Sprintf("Host %s-%s-%d\n", name, task.Name, i)
		}
		lists = append(lists, vars("VC_"+strings.ToUpper(task.Name)+"_HOSTS", strings.Join(hosts, ","))...)
	}
	var list []started
	for _, task := range job.Tasks {
		for i := range task.Replicas {
			s := pod(t, task.Template, nil, append(vars("VC_TASK_INDEX", i), lists...)...).named(fmt.Sprintf("%s-%s-%d",
				name, task.Name, i), "")
			s.files["root/.ssh/id_rsa"] = &fstest.MapFile{Data: []byte("key")}
			s.files["root/.ssh/config"] = &fstest.MapFile{Data: []byte(config)}
			list = append(list, s)
		}
	}
	return list
}
