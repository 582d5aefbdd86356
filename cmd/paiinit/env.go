package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/paiinit/paiinit/envspec"
	"github.com/paiinit/paiinit/launch"
)

func envCommand(environ []string) *cli.Command {
	return &cli.Command{
		Name: "env", Usage: "print what was detected about the job, and from which variables",
		Flags: append(jobFlags(),
			&cli.BoolFlag{Name: "json", Usage: "print JSON"},
			&cli.BoolFlag{
				Name:  "export",
				Usage: "print the variables that a command would get, for a shell: eval \"$(paiinit env --export)\"",
			}),
		Action: func(c *cli.Context) error { return showEnv(c, environ) },
	}
}

// showEnv prints what was detected about the job. Of a secret it prints only the variable or file that has it.
func showEnv(c *cli.Context, environ []string) error {
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("finding the host name: %w", err)
	}
	in, err := envInput(environ, givenJobFlags(c), host)
	if err != nil {
		return err
	}
	job, err := envspec.Read(c.Context, in)
	if err != nil {
		return err
	}
	vars := identityVars(job, job.Rank, job.Size)
	if len(job.Peers) > 0 && job.Peers[0].Host != "" {
		vars = append(vars, masterVars(job.Peers[0].Host, defaultMasterPort)...)
	}
	w := c.App.Writer
	switch {
	case c.Bool("json"):
		return printJSON(w, struct {
			envspec.Job
			// Export has the variables that a command would get, as far as they are known before the ranks connect.
			Export map[string]string `json:"export"`
		}{job, exported(environ, vars)})
	case c.Bool("export"):
		return printExports(w, environ, vars)
	}
	return tableEnv(w, job)
}

// identityVars returns the variables that tell a command its rank and the size of the job.
func identityVars(job envspec.Job, rank, size int) []launch.Var {
	vars := []launch.Var{{Name: "PAIINIT_JOB", Value: job.ID}, {Name: "PAIINIT_ROLE", Value: job.Role}}
	if job.Index >= 0 {
		vars = append(vars, launch.Var{Name: "PAIINIT_INDEX", Value: strconv.Itoa(job.Index)})
	}
	if size > 0 {
		vars = append(vars, launch.Var{Name: "PAIINIT_SIZE", Value: strconv.Itoa(size)})
	}
	if rank >= 0 {
		vars = append(vars, launch.Var{Name: "PAIINIT_RANK", Value: strconv.Itoa(rank)},
			launch.Var{Name: "NODE_RANK", Value: strconv.Itoa(rank)})
	}
	return vars
}

const defaultMasterPort = 29500 // the default of torchrun

// masterVars returns the variables that tell a command the address and port of rank 0.
func masterVars(host string, port int) []launch.Var {
	return []launch.Var{
		{Name: "PAIINIT_MASTER", Value: host}, {Name: "MASTER_ADDR", Value: host},
		{Name: "MASTER_PORT", Value: strconv.Itoa(port)},
	}
}

// exported returns the values of vars that a command would see. The user's own values win.
func exported(environ []string, vars []launch.Var) map[string]string {
	merged, _ := launch.Merge(environ, vars)
	values := make(map[string]string, len(vars))
	for _, v := range vars {
		values[v.Name] = lookup(merged, v.Name)
	}
	return values
}

// printExports prints the variables that environ lacks, for a POSIX shell.
func printExports(w io.Writer, environ []string, vars []launch.Var) error {
	merged, _ := launch.Merge(environ, vars)
	for _, kv := range merged[len(environ):] {
		name, value, _ := strings.Cut(kv, "=")
		if _, err := fmt.Fprintf(w, "export %s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`)); err != nil {
			return err
		}
	}
	return nil
}

func tableEnv(out io.Writer, job envspec.Job) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	row := func(field string, value any) {
		_, _ = fmt.Fprintf(w, "%s\t%v\t%s\n", field, value, job.Sources[field]) // Flush returns the error
	}
	row("system", job.System)
	row("job", job.ID)
	row("attempt", job.Attempt)
	row("role", job.Role)
	row("index", unknown(job.Index))
	row("rank", unknown(job.Rank))
	row("size", unknown(job.Size))
	row("slots", job.Slots)
	row("gpus", job.GPUs)
	row("port", job.Port)
	for i, p := range job.Peers {
		from := ""
		if i == 0 {
			from = job.Sources["peers"]
		}
		place := "unknown address"
		if p.Host != "" && p.Port != 0 {
			place = fmt.Sprintf("%s:%d", p.Host, p.Port)
		}
		_, _ = fmt.Fprintf(w, "peer\t%s rank %s at %s, slots %s\t%s\n",
			p.Alias, unknown(p.Rank), place, unknown(p.Slots), from)
	}
	for _, s := range job.Seeds {
		_, _ = fmt.Fprintf(w, "seed\t%s:%d\t%s\n", s.Host, s.Port, job.Sources["seeds"])
	}
	for _, s := range job.Secrets {
		_, _ = fmt.Fprintf(w, "secret\t%s\t\n", s.Name)
	}
	if len(job.AzureRDMA) > 0 {
		row("azure_rdma", strings.Join(job.AzureRDMA, ", "))
	}
	for _, warning := range job.Warnings {
		_, _ = fmt.Fprintf(w, "warning\t%s\t\n", warning)
	}
	return w.Flush()
}

func unknown(n int) string {
	if n < 0 {
		return "unknown"
	}
	return strconv.Itoa(n)
}
