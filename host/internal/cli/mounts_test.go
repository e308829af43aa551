package cli

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	servicev1 "github.com/pannier/pannier/sdk/proto/pannier/service/v1"
	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/testbin"
)

func TestVariables(t *testing.T) {
	w := &hostv1.Workload{
		Ports: map[string]int32{"http": 20000, "my-admin": 20001}, SecretsDir: "/s/default/w",
		Services: []*hostv1.ServiceStatus{
			{Name: "plain"},
			{
				Name: "my-web", TokenFile: "/s/default/w/my-web/si_token",
				BootstrapFile: "/s/default/w/my-web/envoy_bootstrap.json",
				Upstreams: map[string]string{
					"my-db": "127.0.0.1:5432", "my.db": "127.0.0.1:1", "cache": "unix:///s/default/w/my-web/cache.sock",
				},
			},
			{Name: "second", Upstreams: map[string]string{"my-db": "127.0.0.1:2", "v6": "[::1]:3"}},
		},
	}
	want := map[string]string{
		"PANNIER_PORT_HTTP": "20000", "PANNIER_PORT_MY_ADMIN": "20001", "PANNIER_SECRETS_DIR": "/secrets",
		"PANNIER_TOKEN_FILE_MY_WEB":     "/secrets/my-web/si_token",
		"PANNIER_BOOTSTRAP_FILE_MY_WEB": "/secrets/my-web/envoy_bootstrap.json",
		"CONSUL_HTTP_TOKEN_FILE":        "/secrets/my-web/si_token",
		"PANNIER_UPSTREAM_ADDR_MY_DB":   "127.0.0.1:5432", "NOMAD_UPSTREAM_ADDR_my_db": "127.0.0.1:5432",
		"PANNIER_UPSTREAM_ADDR_CACHE": "unix:///s/default/w/my-web/cache.sock",
		"PANNIER_UPSTREAM_ADDR_V6":    "[::1]:3", "NOMAD_UPSTREAM_ADDR_v6": "[::1]:3",
	}
	if got := variables(w, "/secrets"); !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
	// With two tokens, neither is the token of the workload.
	w.Services[0].TokenFile = "/s/default/w/plain/si_token"
	if got := variables(w, "/secrets")["CONSUL_HTTP_TOKEN_FILE"]; got != "" {
		t.Errorf("one of two tokens: %q", got)
	}
	if got := variables(&hostv1.Workload{}, "/secrets"); len(got) != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

// systemd follows links when it mounts: no line may name a destination that a unit's user could replace with one.
func TestUnitsOfDestinationsThatAUserCanReplace(t *testing.T) {
	testbin.RequireRoot(t, "directories of other users")
	t.Setenv("SUDO_UID", "")
	home := filepath.Join(t.TempDir(), "home")
	const nobody = 65534
	check.NoError(t, errors.Join(os.Mkdir(home, 0o755), os.Chown(home, nobody, nobody)))
	lines := func(destinations ...string) (string, error) {
		var out strings.Builder
		p := &Printer{Out: &out, Err: io.Discard, format: formatSystemd}
		w := &hostv1.Workload{}
		for n, d := range destinations {
			w.Mounts = append(w.Mounts, &hostv1.Mount{Request: fmt.Sprintf("v%d", n), HostPath: "/volume", Destination: d})
		}
		err := printMounts(p, &hostv1.GetWorkloadResponse{Workload: w}, nil, nil)
		return out.String(), err
	}
	for _, destinations := range [][]string{{home + "/data"}, {home + "/new/data"}, {"/data/inner", "/data"}} {
		if out, err := lines(destinations...); err == nil || !strings.Contains(err.Error(), "only root can write in") {
			t.Errorf("%v: %q, %v", destinations, out, err)
		}
	}
	if out, err := lines("/data", "/srv/new/data"); err != nil || strings.Count(out, "BindPaths=") != 2 {
		t.Errorf("%q, %v", out, err)
	}
}

// Paths in a unit's lines are escaped for systemd. Paths that cannot be escaped are refused.
func TestLinesOfAUnit(t *testing.T) {
	p := &Printer{Err: io.Discard}
	w := &hostv1.Workload{SecretsDir: "/s/50%/w"}
	if got, err := p.systemdVariables(w); err != nil || got != "Environment=PANNIER_SECRETS_DIR=/s/50%%/w\n" {
		t.Errorf("%q, %v", got, err)
	}
	w.SecretsDir = "/s/my secrets"
	for _, told := range []func(*hostv1.Workload) (string, error){p.systemdVariables, dockerVariables} {
		if got, err := told(w); err == nil || !strings.Contains(err.Error(), "characters that this format cannot carry") {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// A unit's lines are written once: an upstream whose port the node picks is not in them.
func TestLinesOfAUnitWithUpstreams(t *testing.T) {
	p := &Printer{Err: io.Discard}
	upstream := func(name, label string) *servicev1.Upstream {
		return &servicev1.Upstream{DestinationName: name, LocalBindPortLabel: label}
	}
	w := &hostv1.Workload{
		Ports: map[string]int32{"picked": 20000, "own": 5432},
		Services: []*hostv1.ServiceStatus{{Name: "web", Upstreams: map[string]string{
			"db": "127.0.0.1:5432", "my-cache": "127.0.0.1:20000", "socket": "unix:///run/50%.sock",
		}}},
		Spec: &hostv1.WorkloadSpec{
			Ports: []*hostv1.Port{{Label: "picked"}, {Label: "own", Static: 5432}},
			Services: []*servicev1.Service{{Connect: &servicev1.Connect{SidecarService: &servicev1.SidecarService{
				Proxy: &servicev1.Proxy{Upstreams: []*servicev1.Upstream{upstream("db", "own"), upstream("my-cache", "picked")}},
			}}}},
		},
	}
	want := `Environment=NOMAD_UPSTREAM_ADDR_db=127.0.0.1:5432
Environment=PANNIER_PORT_OWN=5432
Environment=PANNIER_UPSTREAM_ADDR_DB=127.0.0.1:5432
Environment=PANNIER_UPSTREAM_ADDR_SOCKET=unix:///run/50%%.sock
`
	if got, err := p.systemdVariables(w); err != nil || got != want {
		t.Errorf("%s, %v", got, err)
	}
	w.Services[0].Upstreams["socket"] = "unix:///run/a b.sock"
	for _, told := range []func(*hostv1.Workload) (string, error){p.systemdVariables, dockerVariables} {
		if got, err := told(w); err == nil || !strings.Contains(err.Error(), "characters that this format cannot carry") {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// A unit that its workload names loads the secrets; it needs no path of them.
func TestLinesOfAUnitWithCredentials(t *testing.T) {
	p := &Printer{Err: io.Discard}
	w := &hostv1.Workload{
		Spec: &hostv1.WorkloadSpec{Units: []string{"web.service"}}, SecretsDir: "/s/default/w",
		Services:          []*hostv1.ServiceStatus{{Name: "web", TokenFile: "/s/default/w/web/si_token"}},
		Credentials:       []*hostv1.Credential{{Name: "web.si_token", File: "/s/default/w/web/si_token"}},
		CredentialsSocket: "/run/50%.sock",
	}
	want := `LoadCredential=web.si_token:/run/50%%.sock
Environment=CONSUL_HTTP_TOKEN_FILE=%d/web.si_token
Environment=PANNIER_TOKEN_FILE_WEB=%d/web.si_token
`
	if got, err := p.systemdVariables(w); err != nil || got != want {
		t.Errorf("%s, %v", got, err)
	}
	// systemd cannot ask for names that do not fit into a socket's address.
	for length, fits := range map[int]bool{
		maxLoaded - len("web.si_token"):     true,
		maxLoaded - len("web.si_token") + 1: false,
	} {
		w.Spec.Units[0] = strings.Repeat("x", length-len(".service")) + ".service"
		if _, err := p.systemdVariables(w); (err == nil) != fits {
			t.Errorf("%d bytes: %v", length, err)
		}
	}
}
