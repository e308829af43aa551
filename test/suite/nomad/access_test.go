package nomad

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/hashicorp/nomad/api/contexts"

	"github.com/pannier/pannier/test/lib/check"
	"github.com/pannier/pannier/test/lib/docpages"
	"github.com/pannier/pannier/test/lib/testhost"
)

const aclsOn = `
acl {
  enabled = true
}
audit {
  path = %q
}
`

// all allows everything that a client of the front door could want.
const all = `
namespace "*" {
  policy = "write"
}
plugin {
  policy = "write"
}
node {
  policy = "write"
}
operator {
  policy = "write"
}
agent {
  policy = "write"
}
`

// bootstrap makes the first token, which is the test's own.
func bootstrap(t *testing.T, h *testhost.Host) {
	t.Helper()
	h.Eventually("there is a first token", func() error {
		var made struct{ Secret string }
		out := h.Try("acl", "bootstrap", "-o", "json").Stdout
		if err := json.Unmarshal([]byte(out), &made); err != nil || made.Secret == "" {
			return fmt.Errorf("%w: %s", err, out)
		}
		h.Token = made.Secret
		return nil
	})
}

// token makes a token with one policy, and returns its secret.
func token(t *testing.T, h *testhost.Host, name, rules string) string {
	t.Helper()
	h.Run("acl", "policy", "apply", name, h.Write(name+".hcl", rules))
	var made struct{ Secret string }
	check.NoError(t, json.Unmarshal([]byte(h.Run("acl", "token", "create", "-name", name, "-policy", name, "-o", "json")),
		&made))
	return made.Secret
}

// TestAWeakTokenThroughTheDoor: a caller may do what its token may, and one without a token what everybody may. That
// the front door itself may do everything helps neither.
func TestAWeakTokenThroughTheDoor(t *testing.T) {
	t.Parallel()
	audit := t.TempDir() + "/audit.log"
	r := start(t, fmt.Sprintf(aclsOn, audit))
	bootstrap(t, r.Host)
	r.nomad = r.client(t, r.Token)
	if _, _, err := r.nomad.CSIVolumes().List(nil); err != nil {
		t.Errorf("before the front door has its own policy, a user's call: %v", err)
	}
	r.Run("acl", "policy", "apply", plugin, r.Write("all.hcl", all))
	r.create(t, definition("till"))
	r.create(t, definition("stock", func(v *api.CSIVolume) { v.Namespace = "shop" }))
	r.claim(t, "db", "till")

	shop := r.client(t, token(t, r.Host, "user", docpages.Block(t, "acl.md", "policy", "nomad-user")))
	weak := r.client(t, token(t, r.Host, "weak", docpages.Block(t, "acl.md", "policy", "nomad-api")))
	for name, client := range map[string]*api.Client{
		"no token": r.client(t, ""), "an unknown token": r.client(t, "00000000-0000-4000-8000-000000000000"),
		"a token without rights": weak, "a token of another namespace": shop,
	} {
		t.Run(name, func(t *testing.T) {
			r.Use(t)
			v := client.CSIVolumes()
			for what, call := range map[string]func() error{
				"list":       func() error { _, _, err := v.List(nil); return err },
				"read":       func() error { _, _, err := v.Info("till", nil); return err },
				"read none":  func() error { _, _, err := v.Info("none", nil); return err },
				"create":     func() error { _, _, err := v.Create(definition("new"), nil); return err },
				"register":   func() error { _, err := v.Register(definition("till"), nil); return err },
				"deregister": func() error { return v.Deregister("till", true, nil) },
				"delete":     func() error { return remove(client, "till", nil) },
				"detach":     func() error { return v.Detach("till", r.Name, nil) },
				"snapshot": func() error {
					_, _, err := v.CreateSnapshot(&api.CSISnapshot{SourceVolumeID: "till"}, nil)
					return err
				},
				"delete a snapshot": func() error {
					return v.DeleteSnapshot(&api.CSISnapshot{ID: "x", PluginID: "hostpath"}, nil)
				},
				"wait": func() error { _, _, err := v.List(&api.QueryOptions{WaitIndex: 1}); return err },
				"read the agent": func() error {
					_, err := client.Raw().Query("/v1/agent/self", &map[string]any{}, nil)
					return err
				},
				"complete": func() error {
					_, _, err := client.Search().PrefixSearch("", contexts.Volumes, nil)
					return err
				},
			} {
				t.Run(what, func(t *testing.T) {
					err := call()
					refused(t, err, http.StatusForbidden, api.PermissionDeniedErrorContent)
				})
			}
		})
	}
	for what, call := range map[string]func() error{
		"plugins": func() error { _, _, err := weak.CSIPlugins().List(nil); return err },
		"plugin":  func() error { _, _, err := weak.CSIPlugins().Info("hostpath", nil); return err },
		"nodes":   func() error { _, _, err := weak.Nodes().List(nil); return err },
		"at the driver": func() error {
			_, _, err := weak.CSIVolumes().ListExternal("hostpath", &api.QueryOptions{})
			return err
		},
		"search": func() error { _, _, err := weak.Search().PrefixSearch("", contexts.All, nil); return err },
	} {
		t.Run("a token without rights lists "+what, func(t *testing.T) {
			refused(t, call(), http.StatusForbidden, api.PermissionDeniedErrorContent)
		})
	}

	// What the token may, it may.
	for _, namespace := range []string{"shop", "*"} {
		list, _, err := shop.CSIVolumes().List(&api.QueryOptions{Namespace: namespace})
		check.NoError(t, err)
		if len(list) != 1 || list[0].ID != "stock" || !list[0].Schedulable || list[0].NodesHealthy != 1 {
			t.Errorf("the volumes of %q are %v", namespace, list)
		}
	}
	_, _, err := shop.CSIPlugins().Info("hostpath", nil)
	check.NoError(t, err)
	page, _, err := shop.CSIVolumes().ListExternal("hostpath", &api.QueryOptions{})
	if check.NoError(t, err); len(page.Volumes) != 1 {
		t.Errorf("at the driver: %v", page.Volumes)
	}
	found, _, err := shop.Search().PrefixSearch("", contexts.All, &api.QueryOptions{Namespace: "*"})
	if check.NoError(t, err); len(found.Matches[contexts.Volumes]) != 1 || len(found.Matches[contexts.Allocs]) != 0 {
		t.Errorf("it finds %v", found.Matches)
	}
	check.NoError(t, remove(shop, "stock", &api.WriteOptions{Namespace: "shop"}))

	// The audit log has who asked.
	log, err := os.ReadFile(audit)
	check.NoError(t, err)
	if !hasLine(string(log), `"token":"user"`, "VolumeService/DeleteVolume", `"plugin":"nomad-api"`, `"allowed":true`) {
		t.Errorf("the audit log has no deletion by the token:\n%s", log)
	}
	if c := r.volume(t, "default", "till").GetClaims(); len(c) != 1 || c[0].GetState() != "taken" {
		t.Errorf("the claims are %v", c)
	}

	// Everybody may do what the policy anonymous allows.
	r.Run("acl", "policy", "apply", "anonymous", r.Write("anonymous.hcl", `namespace "default" { policy = "read" }`))
	nobody := r.client(t, "").CSIVolumes()
	if _, _, err = nobody.Info("till", nil); err != nil {
		t.Error(err)
	}
	refused(t, nobody.Detach("till", r.Name, nil), http.StatusInternalServerError, "in use")
	refused(t, remove(r.client(t, ""), "till", nil), http.StatusForbidden, api.PermissionDeniedErrorContent)
}

func hasLine(text string, parts ...string) bool {
	for line := range strings.Lines(text) {
		has := true
		for _, part := range parts {
			has = has && strings.Contains(line, part)
		}
		if has {
			return true
		}
	}
	return false
}

// TestATCPAddress: any local user and any page in a browser can reach a TCP address, so it needs tokens and known
// names.
func TestATCPAddress(t *testing.T) {
	t.Parallel()
	address, everywhere := testhost.FreeAddress(t, "127.0.0.1"), testhost.FreeAddress(t, "0.0.0.0")
	configuration := fmt.Sprintf(`
plugin %q {
  config {
    hosts = ["nomad.example.com"]
  }
  listen "nomad" {
    address = %q
  }
  api {
    policy = %q
  }
}
`, plugin, address, plugin)
	h := testhost.New(t, configuration, plugin)
	h.Start()
	ask := func(host, token string, headers ...string) (status int, text string, err error) {
		req := check.Must(http.NewRequestWithContext(testhost.Soon(t), http.MethodPost, "http://"+address+"/v1/search",
			strings.NewReader(`{"Context": "volumes"}`)))(t)
		req.Host = host
		req.Header.Set("Authorization", "Bearer "+token)
		for n := 0; n < len(headers); n += 2 {
			req.Header.Set(headers[n], headers[n+1])
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return res.StatusCode, string(body), err
	}
	answers := func(status int, says, host, token string, headers ...string) {
		t.Helper()
		h.Eventually("it answers", func() error {
			got, text, err := ask(host, token, headers...)
			if err == nil && (got != status || !strings.Contains(text, says)) {
				err = fmt.Errorf("%s with %v: got %d: %s", host, headers, got, text)
			}
			return err
		})
	}
	answers(http.StatusForbidden, "ACLs are off", address, "")

	h.Stop()
	h.Write("agent.hcl", read(t, h.Path("agent.hcl"))+fmt.Sprintf(aclsOn, h.Path("audit.log")))
	h.Start()
	bootstrap(t, h)
	h.Run("acl", "policy", "apply", plugin, h.Write("all.hcl", all))
	answers(http.StatusOK, "Matches", address, h.Token)
	answers(http.StatusOK, "Matches", "localhost:4646", h.Token)
	answers(http.StatusOK, "Matches", "nomad.example.com", h.Token)
	answers(http.StatusForbidden, "is not a name of this API", "attacker.example", h.Token)
	answers(http.StatusForbidden, "cross-origin", address, h.Token, "Sec-Fetch-Site", "cross-site")
	answers(http.StatusForbidden, "cross-origin", address, h.Token, "Origin", "http://attacker.example")
	answers(http.StatusForbidden, api.PermissionDeniedErrorContent, address, "")

	// Tokens are not sent over a network unencrypted.
	h.Write("agent.hcl", strings.Replace(read(t, h.Path("agent.hcl")), address, everywhere, 1))
	h.Stop()
	h.Start()
	h.Eventually("the plugin says why it does not serve", func() error {
		if out := h.Try("plugin", "status", plugin).Stdout; !strings.Contains(out, "can be reached from other machines") {
			return fmt.Errorf("its status is %s", out)
		}
		return nil
	})
}
