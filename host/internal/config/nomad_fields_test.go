package config

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// nomadBlocks are the keys of the blocks that Nomad has too, by the path of the block.
var nomadBlocks = map[string]fields{
	"network":                               networkFields,
	"network.port":                          portFields,
	"service":                               serviceFields,
	"service.weights":                       weightFields,
	"service.check":                         checkFields,
	"service.connect":                       connectFields,
	"service.connect.sidecar_service":       sidecarServiceFields,
	"service.connect.sidecar_service.proxy": proxyFields,
	"service.connect.sidecar_service.proxy.upstreams":                  upstreamFields,
	"service.connect.sidecar_service.proxy.upstreams.mesh_gateway":     meshGatewayFields,
	"service.connect.sidecar_service.proxy.expose":                     exposeFields,
	"service.connect.sidecar_service.proxy.expose.path":                exposePathFields,
	"service.connect.gateway":                                          gatewayFields,
	"service.connect.gateway.proxy":                                    gatewayProxyFields,
	"service.connect.gateway.proxy.envoy_gateway_bind_addresses":       bindFields,
	"service.connect.gateway.ingress":                                  ingressFields,
	"service.connect.gateway.ingress.tls":                              ingressTLSFields,
	"service.connect.gateway.ingress.tls.sds":                          sdsFields,
	"service.connect.gateway.ingress.listener":                         listenerFields,
	"service.connect.gateway.ingress.listener.service":                 behindFields,
	"service.connect.gateway.ingress.listener.service.request_headers": modifierFields,
	"service.connect.gateway.terminating":                              terminatingFields,
	"service.connect.gateway.terminating.service":                      linkedFields,
}

// oursAlone are keys of these blocks that Nomad lacks.
var oursAlone = []string{
	"service.consul", "service.intentions", "service.check.address", "service.connect.admin", "service.connect.gateway.api",
	"service.connect.sidecar_service.proxy.mesh_gateway", "service.connect.sidecar_service.proxy.expose.checks",
}

// The page's table of Nomad's fields says what the reader does with each.
func TestPageHasNomadsFields(t *testing.T) {
	text, err := os.ReadFile("../../../docs/workload-spec.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "| block | fields | here |\n|---|---|---|\n")
	if !found {
		t.Fatal("the page has no table")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	said := map[string]string{} // by the path of the field
	block := ""
	quoted := regexp.MustCompile("`([^`]+)`")
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 {
			t.Fatalf("not three cells: %s", line)
		}
		if name := strings.Trim(cells[0], " `"); name != "" {
			block = name
		}
		answer := regexp.MustCompile(`^(yes|other way: .|no: .)`).FindString(strings.TrimSpace(cells[2]))
		if answer == "" {
			t.Errorf("neither yes, nor other way or no with a reason: %s", line)
		}
		for _, field := range quoted.FindAllStringSubmatch(cells[1], -1) {
			path := block + "." + field[1]
			if said[path] != "" {
				t.Errorf("%s is there twice", path)
			}
			said[path] = answer
		}
	}
	for path, f := range nomadBlocks {
		for _, key := range slices.Concat(f.attrs, f.blocks, f.labelled, f.maps) {
			key := path + "." + key
			if ours := slices.Contains(oursAlone, key); ours && said[key] != "" || !ours && said[key] != "yes" {
				t.Errorf("the page says %q about %s, which is read", said[key], key)
			}
			delete(said, key)
		}
		for key := range f.refused {
			key := path + "." + key
			if said[key] == "" || said[key] == "yes" {
				t.Errorf("the page says %q about %s, which is refused", said[key], key)
			}
			delete(said, key)
		}
	}
	for key, answer := range said {
		t.Errorf("the page says %q about %s, which the reader does not know", answer, key)
	}
}
