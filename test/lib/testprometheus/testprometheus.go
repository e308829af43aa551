// Package testprometheus runs a real Prometheus (Debian's) with the alert rules of packaging/prometheus.
package testprometheus

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pannier/pannier/test/lib/testbin"
)

// Job is the name of the job that scrapes the agents.
const Job = "pannier"

// Rules is the file of the alert rules, below the repository's root.
const Rules = "packaging/prometheus/pannier.rules.yml"

// Prometheus is a process that scrapes agents and evaluates the rules several times a second. Its rules are the shipped
// ones without the time for which they must hold before they fire, and with short ages for long ones.
type Prometheus struct {
	t    testing.TB
	in   Network
	url  string
	said bytes.Buffer
}

// Network runs fn in a network: that of a testnet.Host, or Here.
type Network func(fn func() error) error

// Here is the network of the test.
func Here(fn func() error) error { return fn() }

// Start starts a Prometheus for targets, each HOST:PORT, by http or https, and waits until it serves. The shipped rules
// must pass promtool. Tests are skipped where there is none of these. It ends with the test.
func Start(t testing.TB, in Network, scheme string, targets ...string) *Prometheus {
	t.Helper()
	for _, program := range []string{"prometheus", "promtool", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed (apt-get install prometheus curl): not covered: that the alerts fire", program)
		}
	}
	shipped := filepath.Join(testbin.Root(), Rules)
	if said, err := exec.Command("promtool", "check", "rules", shipped).CombinedOutput(); err != nil {
		t.Errorf("promtool check rules %s: %v\n%s", Rules, err, said)
	}
	rules, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	rules = regexp.MustCompile(`(?m)^ *for: .*\n`).ReplaceAll(rules, nil)
	rules = bytes.ReplaceAll(rules, []byte("stalled_seconds) > 300"), []byte("stalled_seconds) > 1"))
	dir := t.TempDir()
	config := fmt.Sprintf(`
global: {scrape_interval: 250ms, evaluation_interval: 250ms}
rule_files: [rules.yml]
scrape_configs:
  - job_name: %s
    metrics_path: /v1/metrics
    scheme: %s
    tls_config: {insecure_skip_verify: true}
    static_configs: [{targets: [%s]}]
`, Job, scheme, `"`+strings.Join(targets, `", "`)+`"`)
	for name, text := range map[string][]byte{"rules.yml": rules, "prometheus.yml": []byte(config)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := &Prometheus{t: t, in: in}
	for range 5 { // somebody else may take the port
		if p.run(dir) {
			return p
		}
	}
	t.Fatalf("Prometheus does not start:\n%s", p.said.String())
	return nil
}

// run reports whether the process serves.
func (p *Prometheus) run(dir string) bool {
	p.t.Helper()
	var address string
	if err := p.in(func() error {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		address = free.Addr().String()
		return free.Close()
	}); err != nil {
		p.t.Fatal(err)
	}
	p.url = "http://" + address
	cmd := exec.Command("prometheus", "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path",
		filepath.Join(dir, "data"), "--web.listen-address", address, "--log.level=warn")
	log, logs := io.Pipe()
	cmd.Stdout, cmd.Stderr = logs, logs
	copied := make(chan struct{})
	go func() { defer close(copied); _, _ = io.Copy(&p.said, log) }()
	if err := p.in(cmd.Start); err != nil {
		p.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait(); _ = logs.Close(); <-copied }()
	p.t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	for {
		if _, err := p.get("/-/ready"); err == nil {
			return true
		}
		select {
		case <-ended:
			return false
		case <-time.After(50 * time.Millisecond): // between two tries
		}
	}
}

func (p *Prometheus) get(path string) ([]byte, error) {
	var out []byte
	err := p.in(func() (err error) {
		out, err = exec.Command("curl", "-sf", "--max-time", "10", p.url+path).Output()
		return err
	})
	return out, err
}

// Names are those of all alerts.
func Names(t testing.TB) (names []string) {
	t.Helper()
	rules, err := os.ReadFile(filepath.Join(testbin.Root(), Rules))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllSubmatch(rules, -1) {
		names = append(names, string(m[1]))
	}
	return names
}

// Firing are the alerts that fire, sorted, each with its summary.
func (p *Prometheus) Firing() (map[string]string, error) {
	text, err := p.get("/api/v1/alerts")
	if err != nil {
		return nil, fmt.Errorf("ask Prometheus for its alerts: %w", err)
	}
	var answer struct {
		Data struct {
			Alerts []struct {
				Labels, Annotations map[string]string
				State               string
			}
		}
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, err
	}
	firing := map[string]string{}
	for _, a := range answer.Data.Alerts {
		if a.State == "firing" {
			firing[a.Labels["alertname"]] = a.Annotations["summary"]
		}
	}
	return firing, nil
}

// Lacks are the metrics of the dashboards and rules of packaging that no target has shown.
func (p *Prometheus) Lacks() (lacks []string) {
	p.t.Helper()
	text, err := p.get("/api/v1/label/__name__/values")
	if err != nil {
		p.t.Fatal(err)
	}
	var answer struct{ Data []string }
	if err := json.Unmarshal(text, &answer); err != nil {
		p.t.Fatal(err)
	}
	for _, name := range []string{"packaging/grafana/pannier.json", "packaging/grafana/plugins.json", Rules} {
		text, err := os.ReadFile(filepath.Join(testbin.Root(), name))
		if err != nil {
			p.t.Fatal(err)
		}
		for _, metric := range regexp.MustCompile(`\b(pannier|process)_[a-z_]+`).FindAllString(string(text), -1) {
			if !slices.Contains(answer.Data, metric) {
				lacks = append(lacks, metric)
			}
		}
	}
	slices.Sort(lacks)
	return slices.Compact(lacks)
}

// Await waits until alerts fire, and returns their summaries in the order of the names.
func (p *Prometheus) Await(eventually func(what string, check func() error), names ...string) (summaries []string) {
	p.t.Helper()
	eventually(fmt.Sprintf("the alerts %q fire", names), func() error {
		firing, err := p.Firing()
		if err != nil {
			return err
		}
		summaries = nil
		for _, name := range names {
			says, fires := firing[name]
			if !fires {
				return fmt.Errorf("%s does not; these do: %v", name, firing)
			}
			summaries = append(summaries, says)
		}
		return nil
	})
	return summaries
}

// Quiet waits until none of some alerts fires.
func (p *Prometheus) Quiet(eventually func(what string, check func() error), names ...string) {
	p.t.Helper()
	eventually(fmt.Sprintf("none of the alerts %q fires", names), func() error {
		firing, err := p.Firing()
		for name, says := range firing {
			if slices.Contains(names, name) {
				return fmt.Errorf("%s fires: %s", name, says)
			}
		}
		return err
	})
}
