#compdef paiinit
# Completion of paiinit for zsh. Generated: see CONTRIBUTING.md.

_paiinit_ranks() {
	local -a hosts=(${${(f)"$(paiinit hosts 2>/dev/null)"}%:*})
	compadd -a hosts
}

_paiinit_run() {
	_arguments -S -A '-*' \
		'--role=[role of this container, such as worker]:NAME: ' \
		'--index=[index of this container within its role, from 0]:NUMBER: ' \
		'--rank=[rank of this container within the job, from 0]:NUMBER: ' \
		'--size=[number of containers of the job]:NUMBER: ' \
		'--peers=[all containers\: HOST\[\:PORT\],... @FILE or dns\:NAME]:LIST: ' \
		'--slots=[number of processes that a launcher may start here]:NUMBER: ' \
		'--job=[ID of the job, the same in all its containers]:ID: ' \
		'--attempt=[ID of this attempt, the same in all its containers]:ID: ' \
		'--system=[name of the scheduler, if the detected one is wrong]:NAME: ' \
		'--port=[port, TCP and UDP]:NUMBER: ' \
		'--exec=[who runs COMMAND\: rank0, all, leader]:RANKS:(rank0 all leader)' \
		'--timeout=[wait for all ranks, 0 = forever]:TIME: ' \
		'--require-same-launcher[refuse ranks with different versions of mpirun]' \
		'--check=[differences\: warn, require or off]:MODE:(warn require off)' \
		'--preflight=[shell command that must succeed on all ranks]:COMMAND:_command_names -e' \
		'--ssh=[first ssh in PATH\: own or image]:WHICH:(own image)' \
		'--template[replace words such as {rank} in arguments]' \
		'--leader-args=[more arguments of COMMAND on rank 0]:ARGS: ' \
		'--worker-args=[more arguments of COMMAND on other ranks]:ARGS: ' \
		'--ready=[start others after tcp\:, http\: or file\: of rank 0]:CHECK: ' \
		'--first=[shell command on rank 0 before the others]:COMMAND:_command_names -e' \
		'--secret-file=[file with the job'\''s secret (or PAIINIT_SECRET)]:FILE:_files' \
		'--insecure[no secret\: every host that reaches the port can join]' \
		'--http[the port also answers /livez, /readyz and /metrics]' \
		'--authorized-keys=[keys of people who may log in from outside]:FILE:_files' \
		'--people=[where they may run\: job or local]:WHERE:(job local)' \
		'--network-hints=[set launchers'\'' network\: auto or off]:MODE:(auto off)' \
		'--rdma=[verbs devices\: auto, require or off]:MODE:(auto require off)' \
		'--grace=[time from SIGTERM to SIGKILL, 0 = none]:TIME: ' \
		'--signal=[what gets signals\: leader or group]:TARGET:(leader group)' \
		'--until=[roles that end the job (with --exec all), or rank0]:ROLES: ' \
		'--allow-partial[accept a launcher that used too few hosts]' \
		'--restarts=[in-place restarts, or unlimited]:NUMBER: ' \
		'--restart-on=[restart on any failure or on lost]:CAUSES:(any lost)' \
		'--no-restart-on=[no restart after these, such as 2,93]:STATUSES: ' \
		'--restart-grace=[SIGTERM to SIGKILL before a restart]:TIME: ' \
		'--hang=[fail after so long without progress]:TIME: ' \
		'--rejoin=[time for a lost container to return]:TIME: ' \
		'--spares=[last containers, which replace lost ones]:NUMBER: ' \
		'--restart-reset=[a run this long renews the restarts]:TIME: ' \
		'--progress-file=[file whose change is progress, too]:FILE:_files' \
		'--log-format=[text, logfmt or json]:FORMAT:(text logfmt json)' \
		'--log-level=[info, debug, warn or error]:LEVEL:(info debug warn error)' \
		'--report=[where rank 0 leaves a report at the end]:DIR:_directories' \
		'--state-dir=[host lists and sockets]:DIR:_directories' \
		'--help[show this help]' \
		'(-)1:command:_paiinit_command' \
		'*:: :_normal'
}

_paiinit_rsh() {
	_arguments -S -A '-*' \
		'--secret-file=[file with the job'\''s secret]:FILE:_files' \
		'--help[show this help]' \
		'(-)1:host:_paiinit_ranks' \
		'*::: :_normal'
}

_paiinit_each() {
	_arguments -S -A '-*' \
		'--ranks=[LIST of ranks and host names\: 0,3-5,worker-7]:LIST: ' \
		'--help[show this help]' \
		'(-)1:command:_paiinit_command' \
		'*:: :_normal'
}

_paiinit_env() {
	_arguments -S -A '-*' \
		'--role=[role of this container, such as worker]:NAME: ' \
		'--index=[index of this container within its role, from 0]:NUMBER: ' \
		'--rank=[rank of this container within the job, from 0]:NUMBER: ' \
		'--size=[number of containers of the job]:NUMBER: ' \
		'--peers=[all containers\: HOST\[\:PORT\],... @FILE or dns\:NAME]:LIST: ' \
		'--slots=[number of processes that a launcher may start here]:NUMBER: ' \
		'--job=[ID of the job, the same in all its containers]:ID: ' \
		'--attempt=[ID of this attempt, the same in all its containers]:ID: ' \
		'--system=[name of the scheduler, if the detected one is wrong]:NAME: ' \
		'--port=[port, TCP and UDP]:NUMBER: ' \
		'--json[print JSON]' \
		'--export[print the variables that a command would get, for a shell]' \
		'--help[show this help]'
}

_paiinit_check() {
	_arguments -S -A '-*' \
		'--role=[role of this container, such as worker]:NAME: ' \
		'--index=[index of this container within its role, from 0]:NUMBER: ' \
		'--rank=[rank of this container within the job, from 0]:NUMBER: ' \
		'--size=[number of containers of the job]:NUMBER: ' \
		'--peers=[all containers\: HOST\[\:PORT\],... @FILE or dns\:NAME]:LIST: ' \
		'--slots=[number of processes that a launcher may start here]:NUMBER: ' \
		'--job=[ID of the job, the same in all its containers]:ID: ' \
		'--attempt=[ID of this attempt, the same in all its containers]:ID: ' \
		'--system=[name of the scheduler, if the detected one is wrong]:NAME: ' \
		'--port=[port, TCP and UDP]:NUMBER: ' \
		'--exec=[who runs COMMAND\: rank0, all, leader]:RANKS:(rank0 all leader)' \
		'--timeout=[wait for all ranks, 0 = forever]:TIME: ' \
		'--require-same-launcher[refuse ranks with different versions of mpirun]' \
		'--check=[differences\: warn, require or off]:MODE:(warn require off)' \
		'--preflight=[shell command that must succeed on all ranks]:COMMAND:_command_names -e' \
		'--ssh=[first ssh in PATH\: own or image]:WHICH:(own image)' \
		'--template[replace words such as {rank} in arguments]' \
		'--leader-args=[more arguments of COMMAND on rank 0]:ARGS: ' \
		'--worker-args=[more arguments of COMMAND on other ranks]:ARGS: ' \
		'--ready=[start others after tcp\:, http\: or file\: of rank 0]:CHECK: ' \
		'--first=[shell command on rank 0 before the others]:COMMAND:_command_names -e' \
		'--secret-file=[file with the job'\''s secret (or PAIINIT_SECRET)]:FILE:_files' \
		'--insecure[no secret\: every host that reaches the port can join]' \
		'--http[the port also answers /livez, /readyz and /metrics]' \
		'--authorized-keys=[keys of people who may log in from outside]:FILE:_files' \
		'--people=[where they may run\: job or local]:WHERE:(job local)' \
		'--network-hints=[set launchers'\'' network\: auto or off]:MODE:(auto off)' \
		'--rdma=[verbs devices\: auto, require or off]:MODE:(auto require off)' \
		'--grace=[time from SIGTERM to SIGKILL, 0 = none]:TIME: ' \
		'--signal=[what gets signals\: leader or group]:TARGET:(leader group)' \
		'--until=[roles that end the job (with --exec all), or rank0]:ROLES: ' \
		'--allow-partial[accept a launcher that used too few hosts]' \
		'--restarts=[in-place restarts, or unlimited]:NUMBER: ' \
		'--restart-on=[restart on any failure or on lost]:CAUSES:(any lost)' \
		'--no-restart-on=[no restart after these, such as 2,93]:STATUSES: ' \
		'--restart-grace=[SIGTERM to SIGKILL before a restart]:TIME: ' \
		'--hang=[fail after so long without progress]:TIME: ' \
		'--rejoin=[time for a lost container to return]:TIME: ' \
		'--spares=[last containers, which replace lost ones]:NUMBER: ' \
		'--restart-reset=[a run this long renews the restarts]:TIME: ' \
		'--progress-file=[file whose change is progress, too]:FILE:_files' \
		'--log-format=[text, logfmt or json]:FORMAT:(text logfmt json)' \
		'--log-level=[info, debug, warn or error]:LEVEL:(info debug warn error)' \
		'--report=[where rank 0 leaves a report at the end]:DIR:_directories' \
		'--state-dir=[host lists and sockets]:DIR:_directories' \
		'--json[print JSON]' \
		'--help[show this help]' \
		'(-)1:command:_paiinit_command' \
		'*:: :_normal'
}

_paiinit_rdma() {
	_arguments -S -A '-*' \
		'--json[print JSON]' \
		'--all[print one table for all ranks of the running job]' \
		'--root=[DIR with sys/, dev/ and proc/ of another container]:DIR:_directories' \
		'--help[show this help]'
}

_paiinit_install() {
	_arguments -S -A '-*' \
		'--help[show this help]' \
		'1:directory:_directories'
}

_paiinit_version() {
	_arguments -S -A '-*' \
		'--help[show this help]'
}

_paiinit_status() {
	_arguments -S -A '-*' \
		'--json[print JSON]' \
		'--drift[print what differs between the ranks; rank 0 knows it]' \
		'--watch[show every change until the job ends]' \
		'--all[also print one row for each rank]' \
		'--timeline=-[print what each rank did, and when; \[=trace\]\: JSON for ui.perfetto.dev]::value:(text trace)' \
		'--html=[write a page about ranks and timeline to FILE]:FILE:_files' \
		'--ready[exit with 0 if all ranks run their command, else 1, and say why]' \
		'--live[exit with 0 if paiinit answers, else 1]' \
		'--state-dir=[state directory of the paiinit to ask (or PAIINIT_STATE_DIR)]:DIR:_directories' \
		'--help[show this help]'
}

_paiinit_wait() {
	_arguments -S -A '-*' \
		'--timeout=[give up after this time with status 75]:TIME: ' \
		'--state-dir=[state directory of the paiinit to ask (or PAIINIT_STATE_DIR)]:DIR:_directories' \
		'--help[show this help]'
}

_paiinit_barrier() {
	_arguments -S -A '-*' \
		'--timeout=[give up after this time with status 75]:TIME: ' \
		'--state-dir=[state directory of the paiinit to ask (or PAIINIT_STATE_DIR)]:DIR:_directories' \
		'--help[show this help]'
}

_paiinit_hosts() {
	_arguments -S -A '-*' \
		'--state-dir=[state directory of the paiinit to ask (or PAIINIT_STATE_DIR)]:DIR:_directories' \
		'--help[show this help]'
}

_paiinit_hostfile() {
	_arguments -S -A '-*' \
		'--format=[openmpi, hydra, horovod, deepspeed]:NAME:(openmpi hydra horovod deepspeed)' \
		'--state-dir=[state directory of the paiinit to ask (or PAIINIT_STATE_DIR)]:DIR:_directories' \
		'--help[show this help]'
}

_paiinit_command() { _alternative 'commands:command:_command_names -e' 'files:file:_files' }

_paiinit() {
	local -a own=(
		'run:wait for all ranks, then run COMMAND; the default command'
		'rsh:run a command or a shell on another rank, like ssh'
		'each:run COMMAND on every rank, exit with the highest status'
		'env:print what was detected about the job, and from which variables'
		'check:print what is wrong with this image and container, and what to do'
		'rdma:print the verbs devices and what is wrong with them'
		'install:copy paiinit itself to DIR, for another container'
		'version:print the versions of paiinit and Go'
		'status:print which ranks are present, which are missing, and why'
		'wait:wait until all ranks are present'
		'barrier:wait until every rank has called it with the same NAME'
		'hosts:print name:slots of the live ranks, for horovodrun'
		'hostfile:print the host list in the format of a launcher'
	)
	if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then
		_describe -t paiinit-commands 'paiinit command' own
		_paiinit_command
		return
	fi
	case $words[2] in
	(run|rsh|each|env|check|rdma|install|version|status|wait|barrier|hosts|hostfile)
		shift words
		(( CURRENT-- ))
		_paiinit_$words[1]
		;;
	(*) _paiinit_run ;;
	esac
}

if [[ $funcstack[1] == _paiinit ]]; then
	_paiinit "$@"
else
	compdef _paiinit paiinit
fi
