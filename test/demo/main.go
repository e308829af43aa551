// Command demo shows Pannier at work on this machine. It gives a volume to containers of a dockerd of its own, or
// mounts it where there is no dockerd. It starts an agent in a temporary directory, gives volumes to workloads,
// kills the agent while one of them runs, replaces a plugin meanwhile, and leaves nothing behind. With -mesh it also
// starts a Consul and shows requests through Envoys: who may call a service, new tokens, a crash and a stop. With
// -cluster it runs five agents, each in its own network, kills the leader and disconnects a node; the pages of one of
// them show that in a browser, and with -keep they stay up at the end. With -docker it gives containers of two dockerds
// one volume. Every command that it prints can be typed by hand. It needs root and Linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

func main() { os.Exit(demo()) }

func demo() (code int) {
	bin := flag.String("bin", "bin", "the folder that `make build` has filled")
	mesh := flag.Bool("mesh", false, "tell the story of the mesh")
	hosts := flag.Bool("cluster", false, "tell the story of a cluster")
	containers := flag.Bool("docker", false, "tell the story of containers of two hosts")
	keep := flag.Bool("keep", false, "keep the cluster up at the end of its story, until an interrupt")
	program := flag.String("consul", "consul", "Consul's `program`, for the mesh")
	proxy := flag.String("envoy", "envoy", "Envoy's `program`, for the mesh")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if !*keep {
		bounded, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		ctx = bounded
	}
	tell := story
	switch {
	case *containers:
		tell = dockerStory
	case *hosts:
		tell = func(ctx context.Context, h *host) error { return clusterStory(ctx, h, *keep) }
	case *mesh:
		tell = func(ctx context.Context, h *host) error { return meshStory(ctx, h, *program, *proxy) }
	}
	if err := run(ctx, *bin, tell); err != nil {
		fmt.Fprintln(os.Stderr, "\ndemo: failed:", err)
		return 1
	}
	fmt.Println("\ndemo: ok")
	return 0
}

func run(ctx context.Context, bin string, tell func(context.Context, *host) error) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("it mounts file systems and so needs root")
	}
	bin, err = filepath.Abs(bin)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "pannier-demo-")
	if err != nil {
		return err
	}
	h := &host{bin: bin, dir: dir}
	defer func() { err = errors.Join(err, h.cleanUp()) }()
	if err := tell(ctx, h); err != nil {
		return errors.Join(err, h.logTail())
	}
	return nil
}

// story runs the demo of a single host.
func story(ctx context.Context, h *host) error {
	if err := firstAct(ctx, h); err != nil {
		return err
	}
	s := &teller{ctx: ctx, h: h}

	s.say("Another agent, to look closer. It finds its plugins, csi-bridge for volumes among them, and runs the csi-local driver.")
	s.writeFiles()
	s.startAgent()
	s.pannier("plugin", "status")
	s.pannier("driver", "status")

	s.say("A volume of 64 MiB is made: a file with ext4 in it, on this disk.")
	s.pannier("volume", "create", h.path("data.hcl"))

	s.say("A workload gets it, at a path that only it can see, and writes into it.")
	s.pannier("workload", "run", h.path("writer.hcl"), "--", "sh", "-c",
		"echo 'first workload was here' > "+h.mnt()+"/story && df -h "+h.mnt()+" | tail -1")
	s.check("after the workload nothing is mounted and nothing is claimed", s.noClaims, s.noMounts)

	s.say("A second workload writes a line every 50 ms ...")
	second := s.background("workload", "run", h.path("ticker.hcl"), "--", "sh", "-c",
		"while :; do echo tick >> "+h.mnt()+"/ticks; sleep 0.05; done")
	s.ticks(second, 5)
	s.say("... and the agent is killed with kill -9 in the middle of it.")
	s.killAgent()
	s.check("the workload, the plugins and the driver go on without the agent",
		func() error { return s.ticksNow(second, 5) }, s.childrenAlive)
	s.say("The agent starts again. It finds the plugins, the driver, the workload and its claim as they were.")
	s.startAgent()
	s.check("plugins and driver are the same processes as before", s.sameChildren)
	s.pannier("volume", "status", "data")
	s.say("Nobody else gets the volume meanwhile:")
	s.refused("workload", "run", h.path("writer.hcl"), "--", "true")
	s.say("The plugin csi-bridge is replaced five times while it works, and a sixth time by a broken file.")
	s.pannier("volume", "create", h.path("guest-volume.hcl"))
	s.swapBridge(5)
	s.pannier("plugin", "history", bridge)
	s.check("no call failed, and the second workload goes on", func() error { return s.ticksNow(second, 5) })
	s.say("A new csi-bridge gets half of the calls first. It fails them, and is rolled back by itself.")
	s.pannier("plugin", "pin", bridge)
	s.badCanary()
	s.prints("canary of 50%, not promoted", "plugin", "history", bridge)
	s.pannier("plugin", "unpin", bridge)
	s.check("no call failed, and the second workload goes on", func() error { return s.ticksNow(second, 5) })
	s.say("The second workload is asked to end. Its volume comes back.")
	s.end(second)
	s.check("nothing is mounted and nothing is claimed", s.noClaims, s.noMounts)

	s.say("A snapshot is taken, and a new volume made of it. What both workloads wrote is there.")
	snapshot := s.snapshot("data", "before-the-end")
	s.writeClone(snapshot)
	s.pannier("volume", "create", h.path("copy.hcl"))
	s.prints("first workload was here", "workload", "run", h.path("reader.hcl"), "--", "cat", h.mnt()+"/story")
	s.prints("tick", "workload", "run", h.path("reader.hcl"), "--", "tail", "-1", h.mnt()+"/ticks")

	s.say("All is deleted, and the agent stops.")
	s.pannier("volume", "snapshot", "delete", "local", snapshot)
	s.pannier("volume", "delete", "copy")
	s.pannier("volume", "delete", "guest")
	s.pannier("volume", "delete", "data")
	s.stopAgent()
	s.check("no process, mount, loop device or volume file is left", s.nothingLeft)
	return s.err
}
