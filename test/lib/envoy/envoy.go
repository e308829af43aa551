// Package envoy gives tests a real Envoy: the program that tools/envoy puts into the cache.
package envoy

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/testbin"
)

// Program returns the path of Envoy's program, or skips the test where it cannot be had.
func Program(t testing.TB, notCovered string) string {
	t.Helper()
	testbin.CacheDir(t)
	cmd := exec.Command(filepath.Join(testbin.Root(), "tools", "envoy"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 3 {
		t.Skipf("%s; not covered: %s", strings.TrimSpace(stderr.String()), notCovered)
	}
	if err != nil {
		t.Fatalf("tools/envoy: %v\n%s", err, stderr.String())
	}
	return strings.TrimSpace(string(out))
}

// Validate loads a bootstrap as Envoy does at its start, without listeners; flags are additional ones. It returns
// Envoy's warnings.
func Validate(t testing.TB, program string, bootstrap []byte, flags ...string) (warnings string, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bootstrap.json")
	if err := os.WriteFile(path, bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	flags = append(flags, "--mode", "validate", "-c", path, "--log-level", "warn", "--concurrency", "1")
	out, err := exec.Command(program, flags...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("envoy --mode validate: %w\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if !strings.HasPrefix(line, "configuration ") {
			warnings += line
		}
	}
	return warnings, nil
}

// Static returns the JSON of a listener that answers every request with a text.
func Static(listen, text string) string {
	host, port, _ := strings.Cut(listen, ":")
	return fmt.Sprintf(`{"name": "static", "address": {"socket_address": {"address": %q, "port_value": %s}},
  "filter_chains": [{"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": {
    "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
    "stat_prefix": "static",
    "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {
      "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}}],
    "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [
      {"match": {"prefix": "/"}, "direct_response": {"status": 200, "body": {"inline_string": %q}}}]}]}
  }}]}]}`, host, port, text)
}

// Epoch returns the restart epoch of the Envoy that serves, by its admin API at the path of a socket.
func Epoch(admin string) (int, error) {
	client := clientOf("unix", admin)
	text, err := get(client, "/server_info")
	var info struct {
		State   string
		Options struct {
			Epoch int `json:"restart_epoch"`
		} `json:"command_line_options"`
	}
	if err == nil {
		err = json.Unmarshal([]byte(text), &info)
	}
	if err == nil && info.State != "LIVE" {
		err = fmt.Errorf("it is %s", info.State)
	}
	return info.Options.Epoch, err
}

// Stat returns a counter or a gauge of an Envoy, by its admin API at the path of a socket.
func Stat(admin, name string) (int, error) {
	text, err := get(clientOf("unix", admin), "/stats?filter=^"+name+"$")
	if err != nil {
		return 0, err
	}
	_, value, found := strings.Cut(strings.TrimSpace(text), ": ")
	if !found {
		return 0, fmt.Errorf("it has no %s", name)
	}
	return strconv.Atoi(value)
}
