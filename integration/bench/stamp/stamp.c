// Prints the time of its own execution, then executes the program. Benchmarks put it in front of a container's program
// and use it as a stand-in for a launcher. It is written in C because the start of a Go program takes 1 to 2 ms, and
// many times that when 64 containers share two processors, which would distort the figures.
//
// usage: stamp [-w FIFO] NAME [PROGRAM [ARG...]] prints "stamp:NAME:NANOSECONDS", since 1970. With -w it first waits
// until a process opens the FIFO for writing, so that many containers start at the same moment.
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct timespec now;
	if (argc > 2 && !strcmp(argv[1], "-w")) {
		int fifo = open(argv[2], O_RDONLY);
		if (fifo < 0)
			err(1, "%s", argv[2]);
		close(fifo);
		argc -= 2;
		argv += 2;
	}
	clock_gettime(CLOCK_REALTIME, &now);
	if (argc < 2)
		errx(64, "usage: stamp [-w FIFO] NAME [PROGRAM [ARG...]]");
	printf("stamp:%s:%lld%09ld\n", argv[1], (long long)now.tv_sec, now.tv_nsec);
	if (fflush(stdout))
		err(1, "standard output");
	if (argc == 2)
		return 0;
	execv(argv[2], argv + 2);
	err(127, "%s", argv[2]);
}
