package apiserver

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/config/doctor"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// An examination finds what its caller may see, and no caller gets the findings of one with more rights.
func TestExamineWithTheRightsOfTheCaller(t *testing.T) {
	h := openACLHost(t, func(c *parts) {
		c.Agent.Patient = func() doctor.Patient { return doctor.Patient{Config: &config.Agent{DataDir: c.Agent.DataDir}} }
	})
	of := func(c *api.Client, name string) []string {
		t.Helper()
		resp := check.Must(c.Agent.Examine(h.ctx, &hostv1.ExamineRequest{}))(t)
		if resp.GetNode() != "n1" || resp.GetAt() == nil {
			t.Errorf("the examination is %v", resp)
		}
		var found []string
		for _, f := range resp.GetFindings() {
			if f.GetCheck() == name {
				found = append(found, f.GetStatus()+": "+f.GetWhy())
			}
		}
		return found
	}
	few := h.as(t, "few", `agent { policy = "read" }`)
	more := h.as(t, "more", `agent { policy = "read" }
		plugin { policy = "read" }
		operator { policy = "read" }
		namespace "*" { policy = "read" }`)
	for _, c := range []struct{ name, few, more string }{
		{"agent", "ok: n1 is ready", "ok: n1 is ready"},
		{"plugins", "skipped: ", "ok: 1, all serve"},
		{"drivers", "skipped: ", "ok: 1, all healthy"},
		{"secrets keys", "skipped: ", ""}, // the host of this test keeps none
		{"journal and mounts", "skipped: ", "warn: /left belongs to no workload"},
	} {
		for who, want := range map[*api.Client]string{more: c.more, h.client: c.more, few: c.few} {
			found := of(who, c.name)
			if want != "" && !slices.ContainsFunc(found, func(f string) bool { return strings.HasPrefix(f, want) }) {
				t.Errorf("the findings of %q are %q, and should be %q", c.name, found, want)
			}
		}
	}
	for name, rules := range map[string]string{
		"other": `namespace "*" { policy = "write" }`, "denied": `agent { policy = "deny" }`,
	} {
		_, err := h.as(t, name, rules).Agent.Examine(h.ctx, &hostv1.ExamineRequest{})
		wantError(t, err, connect.CodePermissionDenied, `policy "read" for agent`)
	}
}

// One examination is made at a time, callers with the same rights share one that was made, and that of a caller who
// left is made again.
func TestExaminationsAreShared(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	var running, made atomic.Int64
	h := openACLHost(t, func(c *parts) {
		c.Agent.Patient = func() doctor.Patient {
			if running.Add(1) > 1 {
				t.Error("two examinations at a time")
			}
			defer running.Add(-1)
			made.Add(1)
			begun <- struct{}{}
			<-release
			return doctor.Patient{Config: &config.Agent{DataDir: c.Agent.DataDir}}
		}
	})
	reader := h.as(t, "reader", `agent { policy = "read" }`)
	errs := make(chan error)
	ask := func(ctx context.Context, c *api.Client) {
		_, err := c.Agent.Examine(ctx, &hostv1.ExamineRequest{})
		errs <- err
	}
	first, leave := context.WithCancel(h.ctx)
	go ask(first, h.client)
	<-begun
	leave()
	if err := <-errs; connect.CodeOf(err) != connect.CodeCanceled {
		t.Errorf("the caller who left has %v", err)
	}
	for _, c := range []*api.Client{h.client, h.client, reader} {
		go ask(h.ctx, c)
	}
	release <- struct{}{}
	for range 2 {
		<-begun
		release <- struct{}{}
	}
	for range 3 {
		check.NoError(t, <-errs)
	}
	go ask(h.ctx, h.client)
	check.NoError(t, <-errs)
	if n := made.Load(); n != 3 {
		t.Errorf("%d examinations were made for five callers of two kinds, one of whom left", n)
	}
}
