package envoy

import (
	"bytes"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/pannier/pannier/test/lib/check"
)

// TestTheTextOfAShape checks that the bootstrap of any proxy is the one that Envoy's types give, whether or not it is
// made from the text of its shape.
func TestTheTextOfAShape(t *testing.T) {
	made := map[shape]bool{}
	rapid.Check(t, func(t *rapid.T) {
		p := anyProxy(t)
		if s, ok := shapeOf(&p); ok {
			made[s] = true
		}
		want, wantErr := compose(p)
		got, err := Bootstrap(p)
		if (err == nil) != (wantErr == nil) || err != nil && err.Error() != wantErr.Error() {
			t.Fatalf("%+v: got the error %v, want %v", p, err, wantErr)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%+v: got\n%s\nwant\n%s", p, got, want)
		}
	})
	if len(made) < 20 {
		t.Errorf("only %d shapes were tried", len(made))
	}
}

// TestWhatHasNoShape checks that a proxy with keys of its own is not made from the text of a shape.
func TestWhatHasNoShape(t *testing.T) {
	plain := proxy(map[string]any{"protocol": "http"})
	if _, ok := shapeOf(&plain); !ok {
		t.Error("a plain proxy has no shape")
	}
	for name, change := range map[string]func(p *Proxy){
		"a key":         func(p *Proxy) { p.Config = map[string]any{keyStatsTags: "a=b"} },
		"in upper case": func(p *Proxy) { p.Config = map[string]any{"ENVOY_stats_tags": "a=b"} },
		"access logs":   func(p *Proxy) { p.AccessLogs = &AccessLogs{Enabled: true} },
		"a quote":       func(p *Proxy) { p.Service = `we"b` },
		"a control":     func(p *Proxy) { p.Token = "a\nb" },
	} {
		p := plain
		p.Config = maps.Clone(p.Config)
		change(&p)
		if _, ok := shapeOf(&p); ok {
			t.Errorf("%s: it has a shape", name)
		}
		_, err := Bootstrap(p)
		if name != "a control" { // which Envoy refuses
			check.NoError(t, err)
		} else if err == nil {
			t.Error("a token of two lines is accepted")
		}
	}
}

// anyProxy is mostly one that has a shape.
func anyProxy(t *rapid.T) Proxy {
	odd := rapid.IntRange(0, 2).Draw(t, "odd") == 0
	names := []string{"", "web", "a-b_c.d", "<id>", "65001", "default"}
	endpoints := []Endpoint{
		{},
		{Address: "127.0.0.1", Port: 19000},
		{Address: "::1", Port: 65002},
		{Socket: "/run/a.sock"},
	}
	configs := []map[string]any{nil, {"protocol": "http"}, {keyPrometheusBind: "[::]:9102"}, {keyPrometheusBind: "<id>:65001"}}
	logs := []*AccessLogs{nil, {}}
	cas := []string{"", "-----BEGIN\nMIIC\n"}
	if odd {
		names = append(names, "ä", `q"t`, "b\\s", "n\nl", "del\x7f", "\xff", "<>&")
		endpoints = append(endpoints, Endpoint{Address: "1.2.3.4"}, Endpoint{Port: 5},
			Endpoint{Address: "1.2.3.4", Port: 70000}, Endpoint{Address: "1.2.3.4", Port: 1, Socket: "/s"})
		configs = append(configs, map[string]any{keyStatsTags: "a=b"},
			map[string]any{"Envoy_Prometheus_Bind_Addr": "0.0.0.0:9102"}, map[string]any{keyPrometheusBind: "none"},
			map[string]any{keyPrometheusBind: `"q:5`}, map[string]any{keyPrometheusBind: "a:1", keyPrometheusPath: "/p"})
		logs = append(logs, &AccessLogs{Enabled: true})
		cas = append(cas, "c\ta")
	}
	name, endpoint := rapid.SampledFrom(names), rapid.SampledFrom(endpoints)
	return Proxy{
		ID: "id" + name.Draw(t, "id"), Service: name.Draw(t, "service"), Datacenter: name.Draw(t, "datacenter"),
		Namespace: name.Draw(t, "namespace"), Partition: name.Draw(t, "partition"), Token: name.Draw(t, "token"),
		Config: rapid.SampledFrom(configs).Draw(t, "config"), AccessLogs: rapid.SampledFrom(logs).Draw(t, "logs"),
		Admin: endpoint.Draw(t, "admin"), Ready: endpoint.Draw(t, "ready"),
		Server: Server{
			Endpoint: endpoint.Draw(t, "server"), Socket: rapid.SampledFrom([]string{"", "/run/xds.sock"}).Draw(t, "xds"),
			TLS: rapid.Bool().Draw(t, "tls"), CA: rapid.SampledFrom(cas).Draw(t, "ca"),
		},
	}
}
