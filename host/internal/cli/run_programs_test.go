package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/host/internal/cli/launch/child"
	"github.com/pannier/pannier/internal/procfs"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

const secret = "8a2f0000-not-a-real-token"

// meshed is a fake whose workloads get ports, tokens and bootstrap files.
type meshed struct {
	*fake
	// atStop records the files that exist when the workload is stopped.
	atStop func()
}

func startMeshed(t *testing.T) *meshed {
	t.Helper()
	m := &meshed{fake: newFake(t.TempDir()), atStop: func() {}}
	m.startWorkload, m.stopWorkload = m.StartWorkload, m.StopWorkload
	check.NoError(t, m.start())
	t.Cleanup(m.close)
	return m
}

func (m *meshed) StartWorkload(_ context.Context, r *hostv1.StartWorkloadRequest,
	s *connect.ServerStream[hostv1.StartWorkloadResponse],
) error {
	w := &hostv1.Workload{Spec: r.GetSpec(), Node: "n1", State: "running", Ports: map[string]int32{}}
	for i, p := range w.GetSpec().GetPorts() {
		w.Ports[p.GetLabel()] = int32(20000 + i)
	}
	for _, service := range w.GetSpec().GetServices() {
		w.SecretsDir = filepath.Join(m.dir, "secrets")
		status := &hostv1.ServiceStatus{Name: service.GetName()}
		write := func(name, text string) (string, error) {
			path := filepath.Join(w.GetSecretsDir(), service.GetName(), name)
			return path, os.WriteFile(path, []byte(text), 0o400)
		}
		err := os.MkdirAll(filepath.Join(w.GetSecretsDir(), service.GetName()), 0o700)
		if err == nil && service.GetConnect() != nil {
			status.TokenFile, err = write("si_token", secret)
		}
		if err == nil && hasProxy(service) {
			status.ProxyId = "proxy-of-" + service.GetName()
			status.BootstrapFile, err = write("envoy_bootstrap.json", "{}")
		}
		if err != nil {
			return err
		}
		w.Services = append(w.Services, status)
	}
	m.mu.Lock()
	m.workloads[w.GetSpec().GetId()] = w
	m.mu.Unlock()
	return s.Send(&hostv1.StartWorkloadResponse{Event: &hostv1.StartWorkloadResponse_Workload{Workload: w}})
}

func (m *meshed) StopWorkload(ctx context.Context, r *hostv1.StopWorkloadRequest,
	s *connect.ServerStream[hostv1.StopWorkloadResponse],
) error {
	m.atStop()
	return m.fake.StopWorkload(ctx, r, s)
}

// run runs a program and a sidecar, both shell scripts, in dir.
func (m *meshed) run(t *testing.T, dir, program, sidecar string, env ...string) (*exec.Cmd, *check.Buffer) {
	t.Helper()
	testbin.RequireRoot(t, "sidecars of pannier workload run")
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		check.NoError(t, os.WriteFile(path, []byte(text), 0o755))
		return path
	}
	spec := write("w.hcl", fmt.Sprintf(`workload "w" {
  network {
    port "http" {}
    port "admin-api" {}
  }
  service "web" {
    port = "http"
    connect {
      sidecar_service {}
    }
  }
  exec {
    command = "/bin/sh"
    args    = [%q, "${port.http}", "${token_file}", "${bootstrap}", "${secrets_dir}", "${workload.id}", "$${x}"]
    env {
      PORT = "${port.admin-api}"
    }
  }
  sidecar {
    command = ["/bin/sh", %q, "${bootstrap}", "${token_file}", "${port.http}", "${node.name}", "${proxy_id}"]
    env {
      ADMIN = "${port.admin-api}"
    }
  }
}
`, write("program", "cd "+dir+"\n"+program), write("sidecar", "cd "+dir+"\n"+sidecar)))
	return runSpec(t, m.fake, spec, nil, env)
}

func contents(path string) string {
	text, _ := os.ReadFile(path) // A missing file reads as empty.
	return strings.TrimSpace(string(text))
}

// awaitProcess waits until a script has written its process id.
func awaitProcess(t *testing.T, path string) (pid int) {
	t.Helper()
	check.Eventually(t, "a process id in "+path, func() bool {
		var err error
		pid, err = strconv.Atoi(contents(path))
		return err == nil
	})
	return pid
}

func lives(pid int) bool {
	s, err := procfs.ReadStat(procfs.Dir(pid))
	return err == nil && !s.Ended()
}

// The program and the sidecar find the paths of their own files in arguments and environment, but never a
// token itself.
func TestSidecarAndProgramFindTheirFiles(t *testing.T) {
	m, dir := startMeshed(t), t.TempDir()
	cmd, out := m.run(t, dir, `while ! test -s ready; do sleep 0.01; done
echo "$@" $PORT > program.args; env > program.env; cat "$CONSUL_HTTP_TOKEN_FILE" > token; exit 7`,
		`echo "$@" $ADMIN > sidecar.args; env > sidecar.env; echo to-stdout; echo ready > ready; exec sleep 60`,
		"CONSUL_HTTP_TOKEN=the-operators")
	wait(t, cmd, out, 7)
	secrets := filepath.Join(m.dir, "secrets")
	token, bootstrap := secrets+"/web/si_token", secrets+"/web/envoy_bootstrap.json"
	for name, want := range map[string]string{
		"program.args": fmt.Sprintf("20000 %s %s %s w ${x} 20001", token, bootstrap, secrets),
		"sidecar.args": fmt.Sprintf("%s %s 20000 n1 proxy-of-web 20001", bootstrap, token),
		"token":        secret,
	} {
		if got := contents(filepath.Join(dir, name)); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
		}
	}
	for _, name := range []string{"program.env", "sidecar.env"} {
		env := strings.Split(contents(filepath.Join(dir, name)), "\n")
		for _, want := range []string{
			"PANNIER_WORKLOAD=w", "PANNIER_PORT_HTTP=20000", "PANNIER_PORT_ADMIN_API=20001", "PANNIER_SECRETS_DIR=" + secrets,
			"PANNIER_TOKEN_FILE_WEB=" + token, "PANNIER_BOOTSTRAP_FILE_WEB=" + bootstrap, "CONSUL_HTTP_TOKEN_FILE=" + token,
		} {
			if !slices.Contains(env, want) {
				t.Errorf("%s has no %s: %q", name, want, env)
			}
		}
		for _, kv := range env {
			if strings.Contains(kv, secret) || strings.Contains(kv, "the-operators") {
				t.Errorf("%s has a token in it: %s", name, kv)
			}
		}
	}
	if got := out.String(); !strings.Contains(got, "to-stdout\n") || strings.Contains(got, "error") || m.stopped() != 1 {
		t.Errorf("%d stops; output:\n%s", m.stopped(), got)
	}
}

// The sidecar starts before the program. It ends after the program and the processes that the program left,
// and before the workload's volumes are released.
func TestSidecarEndsLast(t *testing.T) {
	m, dir := startMeshed(t), t.TempDir()
	var atStop []string
	m.atStop = func() { atStop = strings.Fields(contents(filepath.Join(dir, "order"))) }
	cmd, out := m.run(t, dir, `setsid sh -c 'trap "echo leftover >> order; exit" TERM; echo > left; while :; do sleep 0.01; done' &
while ! test -e left || ! test -e up; do sleep 0.01; done; echo program >> order; exit 3`,
		`sh -c 'trap "" TERM; while :; do sleep 0.05; done' &
trap "sleep 0.1; echo sidecar >> order; exit" TERM; echo > up; while :; do sleep 0.01; done`)
	wait(t, cmd, out, 3)
	if want := []string{"program", "leftover", "sidecar"}; !slices.Equal(atStop, want) {
		t.Errorf("when it was released, %q had ended, want %q; output:\n%s", atStop, want, out)
	}
	if got := out.String(); !strings.Contains(got, "that the program had left running") ||
		strings.Contains(got, `sidecar "web"`) {
		t.Errorf("output:\n%s", got)
	}
}

// The bootstrap file contains the token, so a new token comes with a new file.
func TestSidecarReadsANewBootstrap(t *testing.T) {
	m, dir := startMeshed(t), t.TempDir()
	cmd, out := m.run(t, dir, `while ! test -s read; do sleep 0.01; done
echo another > "$3.new" && mv "$3.new" "$3"; while ! grep -q another read; do sleep 0.01; done`,
		`cat "$1" >> read; exec sleep 60`)
	wait(t, cmd, out, 0)
	if want := `sidecar "web" has to read a new ` +
		filepath.Join(m.dir, "secrets/web/envoy_bootstrap.json"); strings.Count(out.String(), want) != 1 {
		t.Errorf("%q is not in the output exactly once:\n%s", want, out)
	}
}

// A sidecar that is not there is found before anything is started, one that cannot be executed before the program is.
func TestNoProgramWithoutItsSidecar(t *testing.T) {
	testbin.RequireRoot(t, "sidecars of pannier workload run")
	m, dir := startMeshed(t), t.TempDir()
	broken := filepath.Join(dir, "broken")
	check.NoError(t, os.WriteFile(broken, []byte("#!/no/such\n"), 0o755))
	spec := filepath.Join(dir, "w.hcl")
	text := fmt.Sprintf(`workload "w" {
  service "web" {
    port = "8080"
    connect {
      sidecar_service {}
    }
  }
  sidecar {
    command = ["no-such-proxy"]
  }
  exec {
    command = "touch"
    args    = [%q]
  }
}
`, filepath.Join(dir, "ran"))
	for stops, command := range []string{"no-such-proxy", broken} {
		check.NoError(t, os.WriteFile(spec, []byte(strings.Replace(text, "no-such-proxy", command, 1)), 0o644))
		cmd, out := runSpec(t, m.fake, spec, nil, nil)
		wait(t, cmd, out, 125)
		if !strings.Contains(out.String(), fmt.Sprintf("error: sidecar \"web\": command %q not found", command)) {
			t.Errorf("output:\n%s", out)
		}
		if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil || m.stopped() != stops {
			t.Errorf("the program ran, or there were %d stops, want %d", m.stopped(), stops)
		}
	}
}

func TestSidecarDiesWithTheCommand(t *testing.T) {
	m, dir := startMeshed(t), t.TempDir()
	cmd, _ := m.run(t, dir, "echo $$ > program.pid; exec sleep 60", "echo $$ > sidecar.pid; exec sleep 60")
	program, sidecar := awaitProcess(t, filepath.Join(dir, "program.pid")), awaitProcess(t,
		filepath.Join(dir, "sidecar.pid"))
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	check.Eventually(t, "the end of both", func() bool { return !lives(program) && !lives(sidecar) })
}

// Signals are forwarded to the program. If the program has ended, a signal shortens the sidecar's grace.
func TestSignalsAndSidecars(t *testing.T) {
	m, dir := startMeshed(t), t.TempDir()
	cmd, out := m.run(t, dir, "trap 'exit 4' TERM; echo $$ > program.pid; while :; do sleep 0.01; done",
		"trap 'echo >> asked' TERM; echo $$ > sidecar.pid; while :; do sleep 0.01; done")
	awaitProcess(t, filepath.Join(dir, "program.pid"))
	sidecar := awaitProcess(t, filepath.Join(dir, "sidecar.pid"))
	check.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	check.Eventually(t, "the sidecar to be asked",
		func() bool { _, err := os.Stat(filepath.Join(dir, "asked")); return err == nil })
	began, before := time.Now(), sidecarGrace*9/10 // before the sidecar's grace is over
	// For 0.5 s after the program's end the command ignores signals, because they may have been meant for the
	// program.
	for lives(sidecar) && time.Since(began) < before {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		time.Sleep(20 * time.Millisecond)
	}
	wait(t, cmd, out, 4)
	if !strings.Contains(out.String(), `sidecar "web" did not end when it was asked to: it is killed`) ||
		time.Since(began) > before {
		t.Errorf("after %s; output:\n%s", time.Since(began), out)
	}
}

// A workload may be sidecars alone, such as a gateway. It runs until a signal.
func TestSidecarWithoutAProgram(t *testing.T) {
	testbin.RequireRoot(t, "sidecars of pannier workload run")
	// nohup ignores it, and the program would inherit that.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 0, syscall.SIGINT: 0, syscall.SIGHUP: 128 + 1} {
		m, dir := startMeshed(t), t.TempDir()
		spec := filepath.Join(dir, "w.hcl")
		check.NoError(t, os.WriteFile(spec, fmt.Appendf(nil, `workload "w" {
  service "gate" {
    connect {
      gateway {
        mesh {}
      }
    }
    port = 8443
  }
  sidecar {
    command = ["/bin/sh", "-c", "cd $0; trap 'echo asked >> asked; exit' TERM; cat $1 >> read; while :; do sleep 0.01; done", %q, "${bootstrap}"]
  }
}
`, dir), 0o644))
		cmd, out := runSpec(t, m.fake, spec, nil, nil)
		check.Eventually(t, "the sidecar", func() bool { return contents(filepath.Join(dir, "read")) == "{}" })
		bootstrap := filepath.Join(m.dir, "secrets/gate/envoy_bootstrap.json")
		check.NoError(t, os.WriteFile(bootstrap+".new", []byte("another"), 0o400))
		check.NoError(t, os.Rename(bootstrap+".new", bootstrap))
		check.Eventually(t, "the sidecar to read the other bootstrap",
			func() bool { return contents(filepath.Join(dir, "read")) == "{}another" })
		check.NoError(t, cmd.Process.Signal(sig))
		wait(t, cmd, out, want)
		// One was asked to end for the next one, which was then asked too.
		asked := strings.Count(contents(filepath.Join(dir, "asked")), "asked")
		if m.stopped() != 1 || asked != 2 || strings.Contains(out.String(), "error") {
			t.Errorf("%v: %d stops, asked %d times; output:\n%s", sig, m.stopped(), asked, out)
		}
	}
}

// A variable that cannot have a value is reported before anything is started.
func TestVariablesOfProgramsAreChecked(t *testing.T) {
	spec := &hostv1.WorkloadSpec{
		Id: "w", Exec: &hostv1.Exec{Command: "x", Args: []string{"${port.htp}"}},
		Ports: []*hostv1.Port{{Label: "http"}},
		Services: []*servicev1.Service{
			{Name: "a", Connect: &servicev1.Connect{SidecarService: &servicev1.SidecarService{}}},
			{Name: "b", Connect: &servicev1.Connect{Native: true}},
		},
		Sidecars: []*hostv1.Sidecar{
			{Command: []string{"envoy", "${bootstrap}"}, Env: map[string]string{"A": "${token}"}},
			{Command: []string{"envoy"}, User: "no-such-user"},
		},
	}
	err := (&run{path: "w.hcl", spec: spec}).readPrograms()
	for _, want := range []string{
		"w.hcl: exec: args[0]: unknown variable ${port.htp}; known are ${bootstrap}, ${node.name}, ${port.http}, ${proxy_id}, ${secrets_dir}, ${workload.id}",
		`w.hcl: sidecar "a": env: A: unknown variable ${token}`,
		`w.hcl: sidecar "a": user: there is no user "no-such-user"`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in\n%v", want, err)
		}
	}
}

// A sidecar's user is its own setting, or else the workload's, or else the program's. Without a service
// setting, it belongs to the only service that has a proxy.
func TestSettlingASidecar(t *testing.T) {
	proxied := &servicev1.Connect{SidecarService: &servicev1.SidecarService{}}
	services := []*servicev1.Service{
		{Name: "plain"},
		{Name: "native", Connect: &servicev1.Connect{Native: true}},
		{Name: "web", Connect: proxied},
	}
	for _, c := range []struct{ own, workload, exec, want string }{
		{"", "", "", ""}, {"", "", "3", "3"}, {"", "2", "3", "2"}, {"1", "2", "3", "1"},
	} {
		r := &run{spec: &hostv1.WorkloadSpec{
			Id: "w", User: c.workload, Exec: &hostv1.Exec{Command: "true"}, Services: services,
			Sidecars: []*hostv1.Sidecar{{Command: []string{"true"}, User: c.own}},
		}}
		if c.exec != "" {
			r.user = &child.User{UID: 3}
		}
		check.NoError(t, r.readPrograms())
		got := ""
		if u := r.sidecars[0].user; u != nil {
			got = strconv.Itoa(u.UID)
		}
		if got != c.want || r.sidecars[0].service != "web" {
			t.Errorf("%+v: got user %q of %q", c, got, r.sidecars[0].service)
		}
	}
	r := &run{spec: &hostv1.WorkloadSpec{Services: append(services, &servicev1.Service{Name: "gate", Connect: proxied})}}
	if c, err := r.sidecar(&hostv1.Sidecar{Service: "gate"}); err != nil || c.service != "gate" {
		t.Errorf("%+v, %v", c, err)
	}
}
