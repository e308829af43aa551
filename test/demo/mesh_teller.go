package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/envoy"
)

// siTokens lists the descriptions of the tokens that Pannier has created in Consul.
const siTokens = "consul acl token list | sed -n 's/^Description: *_pannier_si/_pannier_si/p'"

// meshTeller is a teller with a shell and a Consul.
type meshTeller struct {
	*teller
	program string // Consul's
	proxy   string // Envoy's
	ports   ports
	consul  *exec.Cmd
}

// prepare fills the directory with what the commands need, and shows the variables.
func (s *meshTeller) prepare() {
	s.do(func() (err error) {
		if _, err := exec.LookPath("curl"); err != nil {
			return fmt.Errorf("the demo of the mesh asks with curl: %w", err)
		}
		if _, err := exec.LookPath(s.proxy); err != nil {
			return fmt.Errorf("the demo of the mesh needs an Envoy: %w", err)
		}
		if s.ports, err = freePorts(); err != nil {
			return err
		}
		if err := s.h.writeMeshFiles(filepath.Join(s.h.bin, "plugins"), s.ports); err != nil {
			return err
		}
		s.h.env = []string{
			"PATH=" + s.h.path("bin") + ":" + s.h.bin + ":" + os.Getenv("PATH"),
			"PANNIER_ADDR=unix://" + s.h.path("pannier.sock"),
			fmt.Sprintf("CONSUL_HTTP_ADDR=https://127.0.0.1:%d", s.ports.https),
			"CONSUL_CACERT=" + s.h.path("consul-agent-ca.pem"),
			"CONSUL_HTTP_TOKEN_FILE=" + s.h.path("management.token"),
		}
		fmt.Println("$ cd " + s.h.dir)
		fmt.Printf("$ export PATH=%s:%s:$PATH\n$ export %s\n", s.h.path("bin"), s.h.bin, strings.Join(s.h.env[1:], " "))
		return nil
	})
	root, err := os.Getwd()
	s.do(func() error { return err })
	s.sh("install -m 0755 " + s.program + " bin/consul")
	s.sh("install -m 0755 " + s.proxy + " bin/envoy")
	s.sh("go build -C " + root + " -o " + s.h.path("bin") + "/ ./test/demo/answer")
}

// try runs a line in a shell in the demo's directory.
func (s *meshTeller) try(line string) (out string, err error) {
	cmd := exec.CommandContext(s.ctx, "sh", "-c", line)
	cmd.Dir = s.h.dir
	cmd.Env = append(append(os.Environ(), "NO_COLOR=1"), s.h.env...)
	raw, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w", line, err)
	}
	return string(raw), err
}

// shows runs a line and shows its output. The result must pass check.
func (s *meshTeller) shows(line string, check func(out string, err error) error) {
	s.do(func() error {
		fmt.Println("$ " + line)
		out, err := s.try(line)
		fmt.Print(indent(out))
		return check(out, err)
	})
}

// sh runs a line that must succeed.
func (s *meshTeller) sh(line string) { s.shows(line, func(_ string, err error) error { return err }) }

// nothing runs a line that must print nothing.
func (s *meshTeller) nothing(line string) {
	s.shows(line, func(out string, err error) error {
		if err == nil && out != "" {
			err = fmt.Errorf("%s: it had to print nothing", line)
		}
		return err
	})
}

// refused runs a line that must fail with a certain reason.
func (s *meshTeller) refused(line, why string) {
	s.shows(line, func(out string, err error) error { return isRefusal(line, why, out, err) })
}

func isRefusal(line, why, out string, err error) error {
	switch {
	case err == nil:
		return fmt.Errorf("%s: it worked, but had to be refused", line)
	case !strings.Contains(out, why):
		return fmt.Errorf("%s: %q is not why it was refused: %w", line, why, err)
	}
	return nil
}

// until repeats a line until it succeeds and prints text, and shows that output.
func (s *meshTeller) until(line, text string) {
	s.repeat(line, func(out string, err error) error {
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("%s: %q is not in its output: %s", line, text, out)
		}
		return err
	})
}

func (s *meshTeller) repeat(line string, check func(out string, err error) error) {
	s.do(func() error {
		fmt.Println("$ " + line)
		var out string
		err := s.h.wait(s.ctx, line+" shows what it has to", func() (err error) {
			out, err = s.try(line)
			return check(out, err)
		})
		fmt.Print(indent(out))
		return err
	})
}

// startConsul starts Consul and waits until it has registered its own node.
func (s *meshTeller) startConsul() {
	s.do(func() error {
		fmt.Println("$ consul agent -config-file consul.hcl &")
		log, err := os.OpenFile(s.h.path("consul.log"), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer log.Close()
		cmd := exec.CommandContext(s.ctx, s.h.path("bin/consul"), "agent", "-config-file", "consul.hcl")
		cmd.Dir, cmd.Stdout, cmd.Stderr = s.h.dir, log, log
		if err := cmd.Start(); err != nil {
			return err
		}
		s.consul = cmd
		s.h.background = append(s.h.background, cmd)
		return nil
	})
	s.until("consul catalog nodes", "demo")
}

func (s *meshTeller) killConsul() {
	s.do(func() error {
		fmt.Printf("$ kill -KILL %d\n", s.consul.Process.Pid)
		if err := s.consul.Process.Kill(); err != nil {
			return err
		}
		_ = s.consul.Wait() // by the signal
		return nil
	})
}

func (s *meshTeller) stopConsul() {
	s.do(func() error {
		fmt.Printf("$ kill -TERM %d\n", s.consul.Process.Pid)
		if err := s.consul.Process.Signal(unix.SIGTERM); err != nil {
			return err
		}
		err := s.consul.Wait()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
			err = nil // Consul exits with 1 after SIGTERM
		}
		return err
	})
}

// look records the processes of the plugins.
func (s *meshTeller) look() {
	s.do(func() (err error) {
		s.children, err = s.h.children(s.ctx)
		return err
	})
}

// requests makes 200 requests a second to web's upstream while steps are done. None may fail.
func (s *meshTeller) requests(port int, steps func()) {
	if s.err != nil {
		return
	}
	fmt.Printf("# (200 requests a second to 127.0.0.1:%d begin)\n", port)
	load := envoy.StartLoad("tcp", fmt.Sprintf("127.0.0.1:%d", port), 200)
	steps()
	load.End()
	answered, failed := load.Answers()[greeting+"\n"], load.Failed()
	s.check(fmt.Sprintf("%d requests were answered, %d failed", answered, len(failed)), func() error {
		if answered == 0 {
			failed = append(failed, errors.New("no answer"))
		}
		return errors.Join(failed...)
	})
}

// takenOver waits until a workload's Envoy is the next of its chain and serves.
func (s *meshTeller) takenOver(workload string, epoch int) {
	s.until("curl -sS --unix-socket data/secrets/default/"+workload+"/"+workload+
		`/admin.sock http://envoy/server_info | tr -d '\n ' | grep -o '"state":"LIVE".*"restart_epoch":[0-9]*' | sed 's/,.*,/ ... /'`,
		fmt.Sprintf(`"restart_epoch":%d`, epoch))
}
