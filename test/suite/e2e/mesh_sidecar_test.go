package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// besideProgram is a workload whose program and sidecar log their actions to files. Both read their secrets
// as their user. The sidecar is slow to end, and keeps its token until then.
const besideProgram = `
  exec {
    command = "/bin/sh"
    args    = ["-c", "cd %[1]s; trap 'echo program >> order; exit 5' TERM; cat $0 > /dev/null && echo > up; while :; do sleep 0.02; done", "${token_file}"]
    user    = "%[2]s"
  }
  sidecar {
    command = ["/bin/sh", "-c", "cd %[1]s; trap 'sleep 0.3; cat $1 > /dev/null && echo sidecar >> order; exit' TERM; cat $0 > /dev/null && echo >> starts; while :; do sleep 0.02; done", "${bootstrap}", "${token_file}"]
  }`

// A real agent also notices the end of the program. The sidecar still ends last and gets its grace.
func TestMeshSidecar(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		meanwhile func(t *testing.T, m *mesh, r *besideRun)
		order     string
	}{
		"the program ends": {func(*testing.T, *mesh, *besideRun) {}, "program sidecar"},
		"a stop from elsewhere": {
			func(_ *testing.T, m *mesh, _ *besideRun) { m.Run("workload", "stop", "w") },
			"program sidecar",
		},
		"Consul forgets the token": {forgetToken, "program sidecar"},
		"the agent is killed and back": {
			func(_ *testing.T, m *mesh, _ *besideRun) { m.Kill(); m.Start() },
			"program sidecar",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMesh(t, minted, "")
			m.open()
			r := runBeside(t, m, "")
			c.meanwhile(t, m, r)
			r.end(t)
			if got := strings.Join(strings.Fields(r.read("order")), " "); got != c.order {
				t.Errorf("they ended in the order %q, want %q; output:\n%s", got, c.order, &r.out)
			}
			m.nothingInMesh()
		})
	}
}

// forgetToken deletes the token in Consul, and makes the host check it.
func forgetToken(t *testing.T, m *mesh, r *besideRun) {
	t.Helper()
	if _, err := m.consul.Client(m.consul.Management).ACL().TokenDelete(m.service("w").GetTokenAccessor(),
		nil); err != nil {
		t.Fatal(err)
	}
	before := m.secret(m.service("w"))
	m.Kill()
	m.Start()
	m.Eventually("the service has another token", func() error {
		if m.secret(m.service("w")) == before {
			return errors.New("it has the same")
		}
		return nil
	})
	if n := strings.Count(r.read("starts"), "\n"); n != 1 {
		t.Errorf("the sidecar, which reads its secrets again, was started %d times", n)
	}
}

// besideRun is a running `pannier workload run` with such a workload.
type besideRun struct {
	dir  string
	out  bytes.Buffer
	wait func() error
	ask  func() error
}

// proxy is the content of its service's proxy block.
func runBeside(t *testing.T, m *mesh, proxy string) *besideRun {
	t.Helper()
	r := &besideRun{dir: m.Path("beside")}
	if err := os.Mkdir(r.dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{r.dir: 0o777, m.Dir: 0o711} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	cmd := m.Command("workload", "run", r.spec(m, proxy))
	cmd.Stdout, cmd.Stderr = &r.out, &r.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	r.wait, r.ask = cmd.Wait, func() error { return cmd.Process.Signal(unix.SIGTERM) }
	m.Eventually("both run", func() error {
		for _, name := range []string{"up", "starts"} {
			if _, err := os.Stat(filepath.Join(r.dir, name)); err != nil {
				return err
			}
		}
		return nil
	})
	return r
}

// spec writes the workload's specification.
func (r *besideRun) spec(m *mesh, proxy string) string {
	m.t.Helper()
	return m.meshWorkload("w", sidecarService("web", proxy)+fmt.Sprintf(besideProgram, r.dir, secretsUser))
}

func (r *besideRun) read(name string) string {
	text, _ := os.ReadFile(filepath.Join(r.dir, name)) // a missing file counts as empty
	return string(text)
}

// end ends the program if it still runs.
func (r *besideRun) end(t *testing.T) {
	t.Helper()
	_ = r.ask()
	if err := r.wait(); err == nil || err.Error() != "exit status 5" {
		t.Errorf("it ended with %v; output:\n%s", err, &r.out)
	}
}
