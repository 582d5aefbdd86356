# Completion of paiinit for bash. Generated: see CONTRIBUTING.md.

# Puts the words into words, and their places in COMP_WORDS into at: bash also splits at "=" and ":".
_paiinit_words() {
	local i word glue=
	for ((i = 0; i <= COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		if [[ $word =~ ^[=:]+$ ]] && ((i > 1)); then
			words[-1]+=$word glue=1
		elif [[ $glue && ! ($i -eq $COMP_CWORD && ${COMP_LINE:0:COMP_POINT} == *[[:space:]]) ]]; then
			words[-1]+=$word glue=
		else
			words+=("$word") at+=("$i") glue=
		fi
	done
}

# Completes the value of the flag $1 from $2.
_paiinit_value() {
	case $1 in
	--exec) _paiinit_choose "rank0 all leader" "$2" ;;
	--check) _paiinit_choose "warn require off" "$2" ;;
	--preflight) mapfile -t COMPREPLY < <(compgen -c -- "$2") ;;
	--ssh) _paiinit_choose "own image" "$2" ;;
	--first) mapfile -t COMPREPLY < <(compgen -c -- "$2") ;;
	--secret-file) _paiinit_files -f "$2" ;;
	--authorized-keys) _paiinit_files -f "$2" ;;
	--people) _paiinit_choose "job local" "$2" ;;
	--network-hints) _paiinit_choose "auto off" "$2" ;;
	--rdma) _paiinit_choose "auto require off" "$2" ;;
	--signal) _paiinit_choose "leader group" "$2" ;;
	--restart-on) _paiinit_choose "any lost" "$2" ;;
	--progress-file) _paiinit_files -f "$2" ;;
	--log-format) _paiinit_choose "text logfmt json" "$2" ;;
	--log-level) _paiinit_choose "info debug warn error" "$2" ;;
	--report) _paiinit_files -d "$2" ;;
	--state-dir) _paiinit_files -d "$2" ;;
	--root) _paiinit_files -d "$2" ;;
	--timeline) _paiinit_choose "text trace" "$2" ;;
	--html) _paiinit_files -f "$2" ;;
	--format) _paiinit_choose "openmpi hydra horovod deepspeed" "$2" ;;
	*) COMPREPLY=() ;;
	esac
	# bash replaces only what follows "=".
	[[ $3 && $COMP_WORDBREAKS != *=* ]] && COMPREPLY=("${COMPREPLY[@]/#/$3}")
}

_paiinit_files() {
	mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
	compopt -o filenames 2>/dev/null
}

_paiinit_choose() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2"); }

# Completes the word number $1 of words, which is a command ($1 = last) or one of its arguments.
_paiinit_command() {
	if declare -F _comp_command_offset >/dev/null; then
		_comp_command_offset "${at[$1]}"
	elif declare -F _command_offset >/dev/null; then
		_command_offset "${at[$1]}"
	elif (($1 == last)) && [[ $cur != */* ]]; then
		mapfile -t COMPREPLY < <(compgen -c -- "$cur")
	else
		_paiinit_files -f "$cur"
	fi
}

_paiinit() {
	local -a words=() at=()
	local command=run cur flag i last start word
	COMPREPLY=()
	_paiinit_words
	last=$((${#words[@]} - 1)) start=0 cur=${words[last]}
	for ((i = 1; i < last; i++)); do
		word=${words[i]}
		case $word in
		--)
			start=$((i + 1))
			break
			;;
		-*=*) ;;
		-*)
			flag=${word#-} flag=--${flag#-}
			case $flag in
			--role | --index | --rank | --size | --peers | --slots | --job | --attempt | --system | --port | --exec | --timeout | --check | --preflight | --ssh | --leader-args | --worker-args | --ready | --first | --secret-file | --authorized-keys | --people | --network-hints | --rdma | --grace | --signal | --until | --restarts | --restart-on | --no-restart-on | --restart-grace | --hang | --rejoin | --spares | --restart-reset | --progress-file | --log-format | --log-level | --report | --state-dir | --ranks | --root | --html | --format)
				if ((++i == last)); then
					_paiinit_value "$flag" "$cur"
					return
				fi
				;;
			esac
			;;
		run | rsh | each | env | check | rdma | install | version | status | wait | barrier | hosts | hostfile)
			if ((i == 1)); then
				command=$word
				continue
			fi
			;;&
		*)
			start=$i
			break
			;;
		esac
	done

	if ((start == 0)) && [[ $cur == -*=* ]]; then
		flag=${cur%%=*} flag=${flag#-}
		_paiinit_value "--${flag#-}" "${cur#*=}" "${cur%%=*}="
		return
	elif ((start == 0)) && [[ $cur == -* ]]; then
		case $command in
		run) _paiinit_choose "--role --index --rank --size --peers --slots --job --attempt --system --port --exec --timeout --require-same-launcher --check --preflight --ssh --template --leader-args --worker-args --ready --first --secret-file --insecure --http --authorized-keys --people --network-hints --rdma --grace --signal --until --allow-partial --restarts --restart-on --no-restart-on --restart-grace --hang --rejoin --spares --restart-reset --progress-file --log-format --log-level --report --state-dir --help" "$cur" ;;
		rsh) _paiinit_choose "--secret-file --help" "$cur" ;;
		each) _paiinit_choose "--ranks --help" "$cur" ;;
		env) _paiinit_choose "--role --index --rank --size --peers --slots --job --attempt --system --port --json --export --help" "$cur" ;;
		check) _paiinit_choose "--role --index --rank --size --peers --slots --job --attempt --system --port --exec --timeout --require-same-launcher --check --preflight --ssh --template --leader-args --worker-args --ready --first --secret-file --insecure --http --authorized-keys --people --network-hints --rdma --grace --signal --until --allow-partial --restarts --restart-on --no-restart-on --restart-grace --hang --rejoin --spares --restart-reset --progress-file --log-format --log-level --report --state-dir --json --help" "$cur" ;;
		rdma) _paiinit_choose "--json --all --root --help" "$cur" ;;
		install) _paiinit_choose "--help" "$cur" ;;
		version) _paiinit_choose "--help" "$cur" ;;
		status) _paiinit_choose "--json --drift --watch --all --timeline --html --ready --live --state-dir --help" "$cur" ;;
		wait) _paiinit_choose "--timeout --state-dir --help" "$cur" ;;
		barrier) _paiinit_choose "--timeout --state-dir --help" "$cur" ;;
		hosts) _paiinit_choose "--state-dir --help" "$cur" ;;
		hostfile) _paiinit_choose "--format --state-dir --help" "$cur" ;;
		esac
		return
	fi
	case $command in
	run | each | check)
		if ((last == 1)); then
			_paiinit_choose "run rsh each env check rdma install version status wait barrier hosts hostfile" "$cur"
			[[ $cur ]] && mapfile -t -O ${#COMPREPLY[@]} COMPREPLY < <(compgen -c -- "$cur")
			[[ $cur == */* ]] && _paiinit_files -f "$cur"
			return
		fi
		_paiinit_command $((start ? start : last))
		;;
	rsh)
		if ((start == 0)); then
			_paiinit_choose "$("${words[0]}" hosts 2>/dev/null | sed 's/:[0-9]*$//')" "$cur"
		else
			_paiinit_command $((start + 1))
		fi
		;;
	install) ((start)) || _paiinit_files -d "$cur" ;;
	esac
}

complete -F _paiinit paiinit
