package envspec_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/paiinit/paiinit/envspec"
)

func TestWriteTable(t *testing.T) {
	job := envspec.Job{
		System: "slurm", ID: "7", Role: "worker", Index: -1, Rank: 1, Size: -1, Slots: 4, GPUs: 2, Port: 12345,
		Peers: []envspec.Peer{
			{Alias: "worker-0", Rank: 0, Slots: -1, Host: "n1", Port: 12345}, {Alias: "worker-1", Rank: -1, Slots: 4},
		},
		Seeds:     []envspec.Seed{{Host: "head", Port: 22}},
		Secrets:   []envspec.Secret{{Name: "/job/key"}},
		AzureRDMA: []string{"paiAzRDMA", "/etc/dat.conf"},
		Sources:   map[string]string{"job": "SLURM_JOB_ID", "peers": "SLURM_STEP_NODELIST", "seeds": "HOSTNAME"},
		Warnings:  []string{"odd"},
	}
	var b strings.Builder
	require.NoError(t, job.WriteTable(&b))
	require.Equal(t, `system      slurm                                              
job         7                                                  SLURM_JOB_ID
attempt                                                        
role        worker                                             
index       unknown                                            
rank        1                                                  
size        unknown                                            
slots       4                                                  
gpus        2                                                  
port        12345                                              
peer        worker-0 rank 0 at n1:12345, slots unknown         SLURM_STEP_NODELIST
peer        worker-1 rank unknown at unknown address, slots 4  
seed        head:22                                            HOSTNAME
secret      /job/key                                           
azure_rdma  paiAzRDMA, /etc/dat.conf                           
warning     odd                                                
`, b.String())
}
