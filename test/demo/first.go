package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/pannier/pannier/test/lib/docker"
)

// firstAct shows what a newcomer does first, on a host of its own: containers with a volume, or a mount where no
// dockerd can be started.
func firstAct(ctx context.Context, demo *host) (err error) {
	h := &host{bin: demo.bin, dir: demo.path("first")}
	if err := os.Mkdir(h.dir, 0o755); err != nil { //nolint:gosec // as the demo's own; nobody else can enter that
		return err
	}
	s := &teller{ctx: ctx, h: h}
	d, missing := openDocker()
	if d != nil {
		defer func() { err = errors.Join(err, d.Close(), os.RemoveAll(d.Dir())) }()
		h.docker = d
	}
	defer func() { // before the daemon's end
		if err != nil {
			err = errors.Join(err, h.logTail())
		}
		err = errors.Join(err, h.cleanUp())
	}()
	s.writeFiles()
	if missing == nil {
		s.do(func() error { return h.appendFile("agent.hcl", fmt.Sprintf(dockerPlugin, "local")) })
		s.containers()
	} else {
		s.mountAct(missing)
	}
	s.stopAgent()
	s.check("nothing is left of it", s.nothingLeft)
	return s.err
}

// openDocker starts a dockerd with an image in a mount namespace of its own. With an error there is none to use.
func openDocker() (*docker.Daemon, error) {
	for _, program := range []string{"dockerd", "docker"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, err
		}
	}
	d, err := docker.Open()
	if err == nil {
		err = d.MakeImage("busybox", `CMD ["sh"]`)
	}
	if err == nil || d == nil {
		return d, err
	}
	return nil, errors.Join(err, d.Close(), os.RemoveAll(d.Dir()))
}

func (s *teller) containers() {
	s.say("A dockerd, and an agent whose plugin docker-volume is a volume driver of Docker.")
	s.do(func() error {
		fmt.Println("$ dockerd &")
		return nil
	})
	s.startAgent()
	s.say("docker run has a volume that Pannier makes, claims and mounts. Two containers after each other:")
	s.sh("docker volume create --driver pannier --opt size=64MiB data", "data")
	s.sh("docker run --rm --volume data:/data busybox sh -c 'echo kept >/data/file'", "")
	s.sh("docker run --rm --volume data:/data busybox cat /data/file", "kept")
	s.sh("docker volume rm data", "data")
	s.pannier("volume", "delete", "-namespace", "docker", "data")
}

func (s *teller) mountAct(missing error) {
	s.say(fmt.Sprintf("No dockerd can be started here (%v), so a volume is mounted by mount.pannier, which mount -t pannier calls.", missing))
	s.startAgent()
	s.pannier("volume", "create", s.h.path("data.hcl"))
	s.do(func() error {
		return errors.Join(os.Mkdir(s.h.mnt(), 0o700), os.Symlink(filepath.Join(s.h.bin, "pannier"), s.h.path("mount.pannier")),
			os.Symlink(filepath.Join(s.h.bin, "pannier"), s.h.path("umount.pannier")))
	})
	s.sh("./mount.pannier pannier:data "+s.h.mnt(), "")
	s.sh("df -h "+s.h.mnt()+" | tail -1", s.h.mnt())
	s.sh("./umount.pannier "+s.h.mnt(), "")
	s.check("nothing is mounted and nothing is claimed", s.noClaims, s.noMounts)
	s.pannier("volume", "delete", "data")
}

// sh runs a line in a shell, whose output must have a text.
func (s *teller) sh(line, text string) {
	s.do(func() error {
		fmt.Println("$ " + line)
		cmd := exec.CommandContext(s.ctx, "sh", "-c", line)
		cmd.Dir, cmd.Env = s.h.dir, s.h.environment()
		out, err := cmd.CombinedOutput()
		fmt.Print(indent(string(out)))
		if err == nil {
			err = has(text)(string(out))
		}
		return err
	})
}
