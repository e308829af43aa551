package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/envoy"
)

// An instance of two that is changed, stopped by its runner's signal or by a command, and started again costs no
// request.
func TestMeshStopsCostNoRequest(t *testing.T) {
	t.Parallel()
	program := envoy.Program(t, "a stop of one of two instances")
	m := newMesh(t, minted, "")
	m.open()
	dir := m.envoyBeside(program)

	spec := func(id, body string) string {
		t.Helper()
		return m.meshWorkload(id, body+fmt.Sprintf(`
  sidecar {
    command = ["%s/envoy", "-c", "${bootstrap}", "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]
  }`, dir))
	}
	run := func(id, body string) *exec.Cmd {
		t.Helper()
		cmd := m.Command("workload", "run", spec(id, body))
		out := &check.Buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		check.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			if t.Failed() {
				t.Logf("workload %q said:\n%s", id, out)
			}
		})
		return cmd
	}
	instance := func(id, tag string) string {
		return fmt.Sprintf(`
  network {
    port "app" {}
    port "proxy" {}
  }
  service "web" {
    port       = "app"
    tags       = [%q]
    intentions = ["client"]
    check {
      type     = "tcp"
      interval = "1s"
      timeout  = "1s"
    }
    connect {
      sidecar_service {
        port = "proxy"
        proxy {
          config {
            protocol                 = "http"
            local_connect_timeout_ms = %d
          }
        }
      }
    }
  }
  exec {
    command = "%s/envoy"
    args    = ["--config-yaml", %q, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]
    user    = %q
  }`, tag, 1000+len(tag), dir, fmt.Sprintf(`{"static_resources": {"listeners": [%s]}}`, envoy.Static("127.0.0.1:${port.app}", id)), secretsUser)
	}
	port := freePort(t)
	client := run("client", strings.Replace(sidecarService("client", fmt.Sprintf(`
          upstreams {
            destination_name = "web"
            local_bind_port  = %d
          }`, port)), "sidecar_service {", fmt.Sprintf("sidecar_service {\n        port = \"%d\"", freePort(t)), 1)+`
  exec {
    command = "sleep"
    args    = ["infinity"]
  }`)
	running := map[string]*exec.Cmd{"web-1": run("web-1", instance("web-1", "one")), "web-2": run("web-2", instance("web-2", "one"))}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	warm := envoy.StartLoad("tcp", address, 50)
	defer warm.End()
	m.Eventually("both instances answer", func() error {
		if len(warm.Answers()) < 2 {
			return fmt.Errorf("answers %v", warm.Answers())
		}
		return nil
	})
	warm.End()

	load := envoy.StartLoad("tcp", address, 250)
	defer load.End()
	for id, stop := range map[string]func(){
		"web-1": func() { check.NoError(t, running["web-1"].Process.Signal(unix.SIGTERM)) },
		"web-2": func() { m.Run("workload", "stop", "web-2") },
	} {
		m.Run("workload", "update", spec(id, instance(id, "three")))
		stop()
		_ = running[id].Wait() // with the program's exit code
		before := load.Answers()[id]
		running[id] = run(id, instance(id, "one"))
		m.Eventually("it answers again", func() error {
			if load.Answers()[id] == before {
				return errors.New("no answer")
			}
			return nil
		})
	}
	load.End()
	if failed := load.Failed(); len(failed) > 0 || len(load.Answers()) != 2 {
		t.Errorf("%d requests failed, by %v; answers %v", len(failed), failed, load.Answers())
	}
	all := []*exec.Cmd{client, running["web-1"], running["web-2"]}
	for _, cmd := range all {
		check.NoError(t, cmd.Process.Signal(unix.SIGTERM))
	}
	for _, cmd := range all {
		_ = cmd.Wait() // with the program's exit code
	}
	m.nothingInMesh()
}
