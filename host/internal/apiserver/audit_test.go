package apiserver

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc/codes"

	agents "github.com/pannier/pannier/host/internal/peer"
	"github.com/pannier/pannier/host/internal/system/pki"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// auditLines reads an audit log.
func auditLines(t *testing.T, path string) (all []auditEntry, text string) {
	t.Helper()
	data := check.Must(os.ReadFile(path))(t)
	for line := range strings.Lines(string(data)) {
		var e auditEntry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, e)
	}
	return all, string(data)
}

// find waits for a line, which is written after the call's answer.
func find(t *testing.T, path, what string, is func(auditEntry) bool) (found auditEntry) {
	t.Helper()
	check.Eventually(t, "the audit log has "+what, func() bool {
		all, _ := auditLines(t, path)
		for _, e := range all {
			if is(e) {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

func TestAudit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "audit.log")
	h := openACLHost(t, func(c *parts) { c.Audit = NewAuditLog(path, c.Name, c.Logger) })
	made := h.create(t, spec("v", inNamespace("shop")))
	client, token := h.token(t, "ci", `namespace "shop" { policy = "read" }`, nil)
	_, err := client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Namespace: "shop", Id: "v"})
	check.NoError(t, err)
	_, err = client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Namespace: "shop", Id: "none"})
	wantError(t, err, connect.CodeNotFound)
	_, err = client.Volumes.DeleteVolume(h.ctx,
		&hostv1.DeleteVolumeRequest{Namespace: "shop", Id: "v", Secrets: map[string]string{"password": secretValue}})
	wantError(t, err, connect.CodePermissionDenied)
	_, err = h.with(t, "hunter2-the-guess").Agent.Status(h.ctx, &hostv1.StatusRequest{})
	wantError(t, err, connect.CodeUnauthenticated)
	stream := check.Must(client.Agent.Events(h.ctx, &hostv1.EventsRequest{}))(t)
	for stream.Receive() {
	}
	check.NoError(t, stream.Err())

	e := find(t, path, "root's call", func(e auditEntry) bool { return e.RPC == "VolumeService/CreateVolume" })
	if !e.Allowed || e.Code != "ok" || e.Subject != "shop/v" || e.Node != "n1" || e.UID == nil ||
		*e.UID != uint32(os.Geteuid()) || e.PID != os.Getpid() || e.Accessor != "" || e.Time.IsZero() {
		t.Errorf("%+v", e)
	}
	e = find(t, path, "a token's call",
		func(e auditEntry) bool { return e.RPC == "VolumeService/GetVolume" && e.Code == "ok" })
	if !e.Allowed || e.Subject != "shop/v" || e.Accessor != token.Accessor || e.Token != "ci" || e.Phase != "" {
		t.Errorf("%+v", e)
	}
	e = find(t, path, "a call that failed",
		func(e auditEntry) bool { return e.RPC == "VolumeService/GetVolume" && e.Code == "not_found" })
	if !e.Allowed || e.Subject != "shop/none" {
		t.Errorf("%+v", e)
	}
	e = find(t, path, "a refused call", func(e auditEntry) bool { return e.RPC == "VolumeService/DeleteVolume" })
	if e.Allowed || e.Code != "permission_denied" || e.Subject != "shop/v" || e.Accessor != token.Accessor {
		t.Errorf("%+v", e)
	}
	e = find(t, path, "a guess", func(e auditEntry) bool { return e.Code == "unauthenticated" })
	if e.Allowed || e.RPC != "AgentService/Status" || e.Accessor != "" {
		t.Errorf("%+v", e)
	}
	e = find(t, path, "a stream's beginning",
		func(e auditEntry) bool { return e.RPC == "AgentService/Events" && e.Phase == streamBegan })
	if !e.Allowed || e.Code != "" || e.Accessor != token.Accessor {
		t.Errorf("%+v", e)
	}
	e = find(t, path, "a stream's end",
		func(e auditEntry) bool { return e.RPC == "AgentService/Events" && e.Phase == streamEnded })
	if !e.Allowed || e.Code != "ok" {
		t.Errorf("%+v", e)
	}
	e = find(t, path, "a new token", func(e auditEntry) bool { return e.RPC == "ACLService/CreateACLToken" })
	if !e.Allowed || e.Subject != "ci" {
		t.Errorf("%+v", e)
	}

	_, text := auditLines(t, path)
	if strings.Contains(text, "hunter2") || made.Spec.Id == "" {
		t.Error("the audit log has a secret")
	}
	info, err := os.Stat(path)
	if check.NoError(t, err); info.Mode().Perm() != 0o600 {
		t.Errorf("the audit log has mode %v", info.Mode())
	}
}

// When the file is moved or removed, in any way, the next line goes to a new file, and no line is lost.
func TestAuditIsRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	check.NoError(t, os.WriteFile(path, []byte("{}\n"), 0o640)) //nolint:gosec // it is to be closed
	h := openHost(t, func(c *parts) { c.Audit = NewAuditLog(path, c.Name, c.Logger) })
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("an audit log that its group could read: %v, %v", info, err)
	}
	call := func(id string) {
		t.Helper()
		_, err := h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: id})
		wantError(t, err, connect.CodeNotFound)
		find(t, path, "volume "+id, func(e auditEntry) bool { return e.Subject == id })
	}
	call("a")
	check.NoError(t, os.Rename(path, path+".1"))
	call("b")
	check.NoError(t, os.Remove(path))
	call("c")
	if all, _ := auditLines(t, path+".1"); all[len(all)-1].Subject != "a" || all[0].RPC != "" {
		t.Errorf("the old file ends with %+v", all[len(all)-1])
	}
	if all, _ := auditLines(t, path); len(all) != 1 || all[0].Subject != "c" {
		t.Errorf("the new file: %+v", all)
	}
}

// A call is also made if its line cannot be written, and the failure is logged.
func TestAuditCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	path := filepath.Join(dir, "audit.log")
	h := openHost(t, func(c *parts) { c.Audit = NewAuditLog(path, c.Name, c.Logger) })
	failures := func() float64 {
		all := check.Must(h.cfg.Metrics.Gather())(t)
		for _, family := range all {
			if family.GetName() == "pannier_audit_failures_total" {
				return family.GetMetric()[0].GetCounter().GetValue()
			}
		}
		return -1
	}
	if n := failures(); n != 0 {
		t.Fatalf("%v failures", n)
	}
	check.NoError(t, os.RemoveAll(dir))
	check.NoError(t, os.Symlink("/dev/full", dir)) // not a regular file
	for range 2 {
		_, err := h.client.Drivers.GetDriver(h.ctx, &hostv1.GetDriverRequest{Id: "fake"})
		check.NoError(t, err)
	}
	check.Eventually(t, "failures are counted", func() bool { return failures() >= 2 })
	if n := strings.Count(h.log.String(), "the audit log cannot be written"); n != 1 {
		t.Errorf("the failure is logged %d times", n)
	}
	check.NoError(t, os.Remove(dir))
	_, err := h.client.Volumes.GetVolume(h.ctx, &hostv1.GetVolumeRequest{Id: "after"})
	wantError(t, err, connect.CodeNotFound)
	check.Eventually(t, "it is written again", func() bool {
		data, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(data), `"after"`)
	})
	if !strings.Contains(h.log.String(), "the audit log is written again") {
		t.Error("that it is written again is not told")
	}

	// An agent that cannot open the file does not start.
	if err := NewAuditLog("/dev/full", "n1", h.cfg.Logger).open(); err == nil ||
		!strings.Contains(err.Error(), "no regular file") {
		t.Errorf("an audit log that is a device: %v", err)
	}
	link := filepath.Join(t.TempDir(), "link")
	check.NoError(t, os.Symlink(path, link))
	if err := NewAuditLog(link, "n1", h.cfg.Logger).open(); err == nil {
		t.Error("a link is followed")
	}
}

// What a caller names is one line of the audit log that no terminal obeys, and means the same in JSON.
func TestForgedAuditLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	evil := "v\n{\"allowed\":true}\x1b[2J\x7f\u009b2J\u202e\u2028"
	NewAuditLog(path, "n1", hclog.NewNullLogger()).write(auditEntry{RPC: "VolumeService/GetVolume", Subject: evil, Token: evil},
		false)
	all, text := auditLines(t, path)
	if len(all) != 1 || all[0].Subject != evil || all[0].Token != evil {
		t.Errorf("got %+v", all)
	}
	if strings.ContainsFunc(strings.TrimSuffix(text, "\n"), func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("a terminal would obey %q", text)
	}
}

// What was done for another agent is a line too; refused calls are bounded as those of strangers.
func TestAuditOfOtherAgents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log := NewAuditLog(path, "s1", hclog.NewNullLogger())
	revoke := agents.Change{
		By:     pki.Identity{Name: "n1", DC: "dc1", Role: pki.Node},
		Method: "/pannier.peer.v1.ServersService/RevokeToken", Object: "default/a api", Accessor: "the accessor",
		Allowed: true,
	}
	for range 2 * strangerLines {
		log.Peer(t.Context(), revoke)
	}
	refused := revoke
	refused.Accessor, refused.Allowed, refused.Code = "", false, codes.PermissionDenied
	for range 2 * strangerLines {
		log.Peer(t.Context(), refused)
	}
	all, _ := auditLines(t, path)
	if len(all) < 3*strangerLines || len(all) == 4*strangerLines {
		t.Errorf("%d lines", len(all))
	}
	want := auditEntry{
		Time: all[0].Time, Node: "s1", RPC: "ServersService/RevokeToken", Subject: "default/a api",
		Certificate: revoke.By.String(), ConsulAccessor: "the accessor", Allowed: true, Code: "ok",
	}
	if all[0] != want || want.Time.IsZero() {
		t.Errorf("got %+v", all[0])
	}
	if e := all[2*strangerLines]; e.Allowed || e.Code != "permission_denied" || e.ConsulAccessor != "" {
		t.Errorf("a refused call: %+v", e)
	}
	NewAuditLog("", "s1", hclog.NewNullLogger()).Peer(t.Context(), revoke) // there is none
}

// Callers without a token do not fill the disk with lines: what is left out is counted in the next line. All lines of
// callers with a token are there, and so are changes.
func TestAuditOfStrangersIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	h := openACLHost(t, func(c *parts) { c.Audit = NewAuditLog(path, c.Name, c.Logger) })
	known, token := h.token(t, "ci", `plugin { policy = "list" }`, nil)
	h.cfg.SocketRoot = false // from here on h.client is a stranger
	const calls, own = 1500, 150
	began := time.Now()
	for n := range calls {
		_, err := h.client.Agent.Status(h.ctx, &hostv1.StatusRequest{})
		wantError(t, err, connect.CodePermissionDenied)
		if n%(calls/own) == 0 {
			_, err = known.Drivers.ListDrivers(h.ctx, &hostv1.ListDriversRequest{})
			check.NoError(t, err)
		}
	}
	_, err := h.client.ACL.BootstrapACL(h.ctx, &hostv1.BootstrapACLRequest{})
	check.NoError(t, err)
	find(t, path, "the change", func(e auditEntry) bool { return e.RPC == "ACLService/BootstrapACL" && e.Allowed })
	took := time.Since(began)
	all, _ := auditLines(t, path)
	strangers, ci, left := 0, 0, 0
	for _, e := range all {
		left += e.LeftOut
		switch {
		case e.RPC == "AgentService/Status":
			strangers++
		case e.Accessor == token.Accessor:
			ci++
		}
	}
	if most := strangerLines + int(took.Seconds()+1)*strangerRate; strangers > most {
		t.Errorf("%d calls without a token took %s and made %d lines, more than %d", calls, took, strangers, most)
	}
	if strangers+left != calls {
		t.Errorf("%d lines and %d left out are not %d calls", strangers, left, calls)
	}
	if ci != own {
		t.Errorf("%d lines of the %d calls with a token", ci, own)
	}
}
