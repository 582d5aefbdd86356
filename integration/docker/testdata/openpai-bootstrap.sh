#!/bin/bash
# Does what OpenPAI 0.14 does in a container (src/rest-server/src/templates/dockerContainerScript.mustache), in the same
# order, with files instead of HDFS. It differs in two points: the command's output goes to docker logs, not to
# /pai/log, and the script notices the end of the command at once, not within 20 s.
# usage: bootstrap.sh COMMAND

trap 'exit 143' TERM

export PAI_WORK_DIR="$PWD" NVIDIA_VISIBLE_DEVICES=all
[ -z "$(ls /pai/code)" ] || cp -r /pai/code/* ./

# If the image has openssh-server: the job's key, the addresses of the tasks, and sshd on the ssh port.
if [ -d /keys ]; then
	mkdir /root/.ssh
	cp /keys/"$PAI_JOB_NAME" /keys/"$PAI_JOB_NAME.pub" /pai/ssh_config/config /root/.ssh/
	chmod 400 /root/.ssh/"$PAI_JOB_NAME"
	cat /root/.ssh/"$PAI_JOB_NAME.pub" >>/root/.ssh/authorized_keys
	python3 - "$PAI_CONTAINER_SSH_PORT" <<-'EOF'
		import os, socket, sys, threading
		sshd = socket.create_server(("", int(sys.argv[1])))
		if os.fork():
		    os._exit(0)
		os.setsid()
		while True:
		    client = sshd.accept()[0]
		    client.sendall(b"SSH-2.0-OpenSSH_7.2p2 Ubuntu-4ubuntu2.8\r\n")
		    threading.Thread(target=client.recv, args=[1], daemon=True).start()
	EOF
fi

# If the job has paiAzRDMA.
if [ -d /var/lib/hyperv ]; then
	cp /etc/hosts /hosts.tmp
	sed -i '/127.0.0.1/c\127.0.0.1 localhost' /hosts.tmp
	cat /machines >>/hosts.tmp
	cat /hosts.tmp >/etc/hosts
fi
env | grep -E '^PAI|PATH|PREFIX|JAVA|HADOOP|NVIDIA|CUDA' >/etc/environment

run_user_command() {
	eval "$1" || exit $?
	exit 0
}
run_user_command "$1" &
wait $!
