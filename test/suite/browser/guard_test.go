package browser

import (
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/pannier/pannier/test/lib/check"
)

// visitor makes requests as a browser that somebody has signed in with does, but for what each attack changes.
type visitor struct {
	*http.Client
	t *testing.T
	r *rig
	// form is the token of the session's forms.
	form string
}

// visit signs in with the secret of a token; an empty one: not at all.
func (r *rig) visit(t *testing.T, secret string) *visitor {
	t.Helper()
	v := &visitor{t: t, r: r, Client: &http.Client{
		Transport:     &http.Transport{DialContext: r.dial},
		Jar:           check.Must(cookiejar.New(nil))(t),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	t.Cleanup(v.CloseIdleConnections)
	if r.named == "" {
		res, _ := v.get("/sign-in")
		r.named = check.Must(res.Location())(t).Host
	}
	v.readForm("/sign-in")
	if secret != "" {
		res, _ := v.post("/sign-in", url.Values{"form": {v.form}, "token": {secret}})
		if res.StatusCode != http.StatusSeeOther {
			t.Fatalf("sign in: %s", res.Status)
		}
		v.readForm("/")
	}
	return v
}

var formField = regexp.MustCompile(`name="form" value="([^"]+)"`)

func (v *visitor) readForm(path string) {
	v.t.Helper()
	_, text := v.get(path)
	found := formField.FindStringSubmatch(text)
	if found == nil {
		v.t.Fatalf("%s has no form: %s", path, text)
	}
	v.form = found[1]
}

func (v *visitor) send(req *http.Request) (*http.Response, string) {
	v.t.Helper()
	res := check.Must(v.Do(req))(v.t)
	defer res.Body.Close()
	if res.Header.Get("Content-Type") == "text/event-stream" {
		return res, "" // it does not end
	}
	return res, string(check.Must(io.ReadAll(res.Body))(v.t))
}

func (v *visitor) get(path string) (*http.Response, string) {
	v.t.Helper()
	return v.send(check.Must(http.NewRequestWithContext(v.t.Context(), http.MethodGet, v.r.url(path), nil))(v.t))
}

func (v *visitor) post(path string, form url.Values, headers ...string) (*http.Response, string) {
	v.t.Helper()
	req := check.Must(http.NewRequestWithContext(v.t.Context(), http.MethodPost, v.r.url(path),
		strings.NewReader(form.Encode())))(v.t)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for n := 0; n < len(headers); n += 2 {
		req.Header.Set(headers[n], headers[n+1])
	}
	return v.send(req)
}

// drained reports whether the host's node is being drained.
func (r *rig) drained(t *testing.T) bool {
	t.Helper()
	return check.Must(r.Node("a"))(t).GetNode().GetDrain() != nil
}

// A page of another site that makes a signed-in browser post a form changes nothing.
func TestFormOfAnotherSite(t *testing.T) {
	t.Parallel()
	r := newRig(t, "actions = true")
	v, other := r.visit(t, r.manager), r.visit(t, r.manager)
	drain := func(form string) url.Values { return url.Values{"form": {form}, "id": {"a"}} }
	for what, posted := range map[string]struct {
		form    string
		headers []string
	}{
		"without the form's token":          {"", nil},
		"with the token of another session": {other.form, nil},
		"from another origin":               {v.form, []string{"Origin", "https://attacker.example"}},
		"as a browser marks it":             {v.form, []string{"Sec-Fetch-Site", "cross-site"}},
		"from another port of this host":    {v.form, []string{"Sec-Fetch-Site", "same-site"}},
	} {
		res, text := v.post("/do/drain", drain(posted.form), posted.headers...)
		if res.StatusCode != http.StatusForbidden || !strings.Contains(text, "nothing was done") {
			t.Errorf("%s: %s: %s", what, res.Status, text)
		}
		if r.drained(t) {
			t.Fatalf("%s the node is drained", what)
		}
	}
	if res, _ := v.get("/do/drain?id=a&form=" + v.form); res.StatusCode != http.StatusOK || r.drained(t) {
		t.Errorf("a GET: %s", res.Status)
	}
	if res, text := v.post("/do/drain", drain(v.form)); res.StatusCode != http.StatusSeeOther || !r.drained(t) {
		t.Errorf("the session's own form: %s: %s", res.Status, text)
	}
}

// A name that an attacker has let resolve to this host is not answered.
func TestRebinding(t *testing.T) {
	t.Parallel()
	r := newRig(t, `hosts = ["pannier.example.org"]`)
	v := r.visit(t, r.reader)
	get := func(host string) (*http.Response, string) {
		req := check.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, r.url("/volumes"), nil))(t)
		req.Host = host
		return v.send(req)
	}
	for _, host := range []string{
		"attacker.example", "attacker.example:7480", "localhost.attacker.example", "127.0.0.1.attacker.example", "",
	} {
		if res, text := get(host); host != "" && (res.StatusCode != http.StatusMisdirectedRequest || strings.Contains(text, "<h1>")) {
			t.Errorf("%q: %s: %s", host, res.Status, text)
		}
	}
	for _, host := range []string{"localhost:7480", "127.0.0.1", "[::1]:7480", "pannier.example.org", "PANNIER.example.org:443"} {
		if res, text := get(host); res.StatusCode == http.StatusMisdirectedRequest {
			t.Errorf("%q: %s: %s", host, res.Status, text)
		}
	}
}

// A session does what its token allows and no more, where the pages have actions and where they have none.
func TestReadOnlySession(t *testing.T) {
	t.Parallel()
	r := newRig(t, "actions = true")
	v := r.visit(t, r.reader)
	form := url.Values{"form": {v.form}, "id": {"a"}}
	if res, text := v.post("/do/drain", form); res.StatusCode != http.StatusForbidden || r.drained(t) {
		t.Errorf("by who may only read: %s: %s", res.Status, text)
	}
	stranger := r.visit(t, "")
	form.Set("form", stranger.form)
	if res, text := stranger.post("/do/drain", form); res.StatusCode != http.StatusForbidden || r.drained(t) {
		t.Errorf("by nobody: %s: %s", res.Status, text)
	}
	r.Write("agent.hcl", strings.Replace(string(check.Must(os.ReadFile(r.Path("agent.hcl")))(t)), "actions = true", "", 1))
	r.Eventually("the plugin's policy is found, and its config taken over", func() error {
		if out := r.Try("agent", "reload"); out.Code != 0 {
			return errors.New(out.Stderr)
		}
		return nil
	})
	may := r.visit(t, r.manager)
	form.Set("form", may.form)
	if res, text := may.post("/do/drain", form); res.StatusCode != http.StatusForbidden || r.drained(t) ||
		!strings.Contains(text, "actions = true") {
		t.Errorf("where actions are off: %s: %s", res.Status, text)
	}
}

// The plugin's own rights are nobody else's: a page shows what the user's token allows, also where the plugin may more.
func TestRightsOfThePluginAreNotLent(t *testing.T) {
	t.Parallel()
	r := newRig(t, "actions = true")
	r.Run("acl", "policy", "apply", "web", r.Write("more.policy", strings.ReplaceAll(readPolicy(t), "read", "write")))
	r.volume("secret-plans")
	pages := []string{
		"/", "/volumes", "/volumes?live=1", "/volumes/default/secret-plans", "/workloads", "/nodes", "/nodes/a", "/events", "/checks",
		"/releases", "/drivers", "/plugins", "/services",
	}
	stranger := r.visit(t, "")
	for _, path := range pages {
		res, text := stranger.get(path)
		if res.StatusCode == http.StatusOK || strings.Contains(text, "csi-bridge") ||
			strings.Contains(text, "secret-plans") && !strings.Contains(path, "secret-plans") {
			t.Errorf("%s for nobody: %s: %s", path, res.Status, text)
		}
	}
	nobody := r.visit(t, "")
	res, _ := nobody.post("/sign-in", url.Values{"form": {nobody.form}, "token": {r.nobody}})
	if res.StatusCode != http.StatusSeeOther {
		t.Fatal(res.Status)
	}
	for _, path := range pages {
		if strings.Contains(path, "live") {
			continue // it does not end
		}
		if _, text := nobody.get(path); strings.Contains(text, "secret-plans") && path != "/volumes/default/secret-plans" ||
			strings.Contains(text, "csi-bridge") {
			t.Errorf("%s for who may see another namespace: %s", path, text)
		}
	}
}

// A cookie that this plugin has not made, or another key, is none; one that it has made leaves with nobody's script.
func TestCookie(t *testing.T) {
	t.Parallel()
	r := newRig(t, "")
	v := r.visit(t, "")
	res, _ := v.post("/sign-in", url.Values{"form": {v.form}, "token": {r.reader}, "to": {"//attacker.example/"}})
	if to := res.Header.Get("Location"); to != "/" {
		t.Errorf("a way to another site: %s", to)
	}
	var cookie *http.Cookie
	for _, c := range res.Cookies() {
		cookie = c
	}
	if cookie == nil || !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode ||
		strings.Contains(cookie.Value, r.reader) {
		t.Fatalf("the cookie is %v", cookie)
	}
	for n := range cookie.Value {
		if n%16 != 0 {
			continue
		}
		forged := []byte(cookie.Value)
		forged[n] ^= 1
		req := check.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, r.url("/volumes"), nil))(t)
		req.Header.Set("Cookie", cookie.Name+"="+string(forged))
		plain := &visitor{Client: &http.Client{CheckRedirect: v.CheckRedirect, Transport: v.Transport}, t: t, r: r}
		if res, _ := plain.send(req); res.StatusCode != http.StatusSeeOther {
			t.Errorf("with another byte %d: %s", n, res.Status)
		}
		plain.CloseIdleConnections()
	}
	res, text := v.get("/volumes")
	for name, want := range map[string]string{
		"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
		"Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
	} {
		if got := res.Header.Get(name); !strings.Contains(got, want) {
			t.Errorf("%s is %q", name, got)
		}
	}
	if csp := res.Header.Get("Content-Security-Policy"); strings.Contains(csp, "unsafe") || strings.Contains(text, r.reader) {
		t.Errorf("the policy is %s", csp)
	}
	if leaks := r.Leaks([]string{r.reader}, text); len(leaks) > 0 {
		t.Errorf("the token's secret is in %q", leaks)
	}
}
