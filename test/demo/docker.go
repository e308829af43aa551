package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/pannier/pannier/test/lib/docker"
)

// dockerHosts are a server, which keeps the ledger, and two hosts with a dockerd each.
var dockerHosts = []string{"server-1", "node-1", "node-2"}

// dockerPlugin is the configuration of Docker's volume driver, whose volumes are of a CSI driver. A start waits
// shortly, so that the demo does.
const dockerPlugin = `
plugin "docker-volume" {
  config {
    driver  = %q
    timeout = "8s"
  }
  listen "docker" {
    address = "unix:///run/docker/plugins/pannier.sock"
  }
  api {
    policy = "docker-volume"
  }
}
`

// dockerWriter is a container that writes its host's name and the machine's uptime into its volume.
const dockerWriter = `docker run --detach --name db --volume data:/data busybox sh -c ` +
	`'while :; do read -r up idle </proc/uptime; echo "$0 $up" >>/data/log; sleep 0.1; done' `

// dockerStory runs the demo of containers.
func dockerStory(ctx context.Context, h *host) (err error) {
	s := &clusterTeller{
		teller: &teller{ctx: ctx, h: h}, names: dockerHosts, servers: 1, config: fmt.Sprintf(dockerPlugin, "shared"),
		daemons: map[string]*docker.Daemon{},
	}
	defer func() { err = errors.Join(err, s.cleanUp()) }()

	s.say("A server, which keeps the ledger, and two hosts, each with a network and a dockerd of its own.")
	s.prepare()
	s.addHosts()
	s.startDockerd("node-1")
	s.startDockerd("node-2")
	s.sh("", "pannier tls ca create")
	s.sh("", "(umask 077 && head -c 32 /dev/urandom | base64 >gossip.key)")
	s.sh("", "pannier tls cert create -server -name server-1 | grep key")
	s.sh("", "for host in node-1 node-2; do pannier tls cert create -node -name $host; done | grep key")
	s.sh("", "tail -13 node-1.hcl")
	s.startAll()

	s.say("Docker on node-1 makes a volume that all hosts can reach, and a container writes into it.")
	s.sh("node-1", "docker volume create --driver pannier --opt size=1MiB data")
	s.sh("node-1", dockerWriter+"node-1")
	s.writes("node-1")
	s.until("node-1", "pannier workload status -namespace docker docker-volume.data.node-1", has("docker stop db"))

	s.say("Docker on node-2 knows the same volume, and cannot have it.")
	s.sh("node-2", "docker volume create --driver pannier data")
	s.refused("node-2", dockerWriter+"node-2", `workload "docker-volume.data.node-1" on node "node-1"`)
	s.sh("node-2", "docker rm db")
	s.writes("node-1")

	s.say("node-1 is cut off from the others. Its container writes on, until its host stops it by its own clock.")
	s.cut("node-1")
	s.writes("node-1")
	s.until("node-1", "docker ps --all --format '{{.Names}} {{.Status}}'", has("Exited (137)"))
	s.say("Now node-2 gets the volume: docker run waits for it.")
	s.sh("node-2", dockerWriter+"node-2")
	s.writes("node-2")
	s.handedOver("node-1", "node-2")

	s.say("node-1 is connected again, and a container there is refused now.")
	s.heal()
	s.until("node-2", "pannier node status", s.allReady)
	s.refused("node-1", "docker start db", `workload "docker-volume.data.node-2" on node "node-2"`)

	s.say("All is removed.")
	s.sh("node-1", "docker rm db && docker volume rm data")
	s.sh("node-2", "docker rm --force db && docker volume rm data")
	s.sh("node-2", "pannier volume delete -namespace docker data")
	s.stopAll()
	s.check("no process and no mount is left", s.nothingRuns, h.noMounts)
	return s.err
}

// startDockerd starts a dockerd in a host's network and a mount namespace of its own, with an image.
func (s *clusterTeller) startDockerd(name string) {
	s.do(func() error {
		fmt.Println(name + "$ dockerd &")
		var d *docker.Daemon
		err := s.hosts[name].Do(func() (err error) {
			d, err = docker.Open()
			return err
		})
		if d == nil {
			return err
		}
		s.daemons[name] = d
		if err != nil {
			return err
		}
		return d.MakeImage("busybox", `CMD ["sh"]`)
	})
}
