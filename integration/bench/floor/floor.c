// The fastest possible remote shell between containers of one machine: it enters the other container and runs the
// command there, without network, login and server.
//
// It does what every remote shell does: it gives the command a session and an environment of its own, the working
// directory HOME and a shell, and stays until the command has ended, because launchers wait for it and kill it. It
// cannot enter the PID namespace, which is no descendant of its own.
//
// usage: floor [OPTION...] HOST WORD...; the namespaces are files in /run/ns/HOST.
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const kinds[] = {"uts", "ipc", "net", "mnt"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static char *const environment[] = {
	"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/sh", NULL,
};

static void enter(const char *host)
{
	int files[KINDS];
	for (int i = 0; i < KINDS; i++) {
		char path[512];
		snprintf(path, sizeof path, "/run/ns/%s/%s", host, kinds[i]);
		if ((files[i] = open(path, O_RDONLY | O_CLOEXEC)) < 0)
			err(255, "%s", path);
	}
	for (int i = 0; i < KINDS; i++)
		if (setns(files[i], 0) < 0)
			err(255, "entering %s of %s", kinds[i], host);
}

static char *joined(char **words)
{
	size_t size = 1;
	for (char **w = words; *w; w++)
		size += strlen(*w) + 1;
	char *command = calloc(1, size), *end = command;
	if (!command)
		err(255, "command");
	for (; *words; words++) {
		end = stpcpy(end, *words);
		if (words[1])
			*end++ = ' ';
	}
	return command;
}

int main(int argc, char **argv)
{
	int i = 1;
	while (i < argc && argv[i][0] == '-')
		i++;
	if (i + 1 >= argc)
		errx(255, "no host or no command");
	char *const shell[] = {"sh", "-c", joined(argv + i + 1), NULL};
	enter(argv[i]);
	if (chdir("/root") < 0)
		err(255, "/root");
	pid_t child = vfork();
	if (child == 0) {
		setsid();
		execve("/bin/sh", shell, environment);
		_exit(127);
	}
	if (child < 0)
		err(255, "vfork");
	int status;
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			err(255, "waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
