package apiserver

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/host/internal/config"
	"github.com/pannier/pannier/host/internal/doctor"
	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
	"github.com/pannier/pannier/test/lib/check"
)

// An examination finds what its caller may see, and no caller gets the findings of one with more rights.
func TestExamineWithTheRightsOfTheCaller(t *testing.T) {
	h := openACLHost(t, func(c *Config) {
		c.Patient = func() doctor.Patient { return doctor.Patient{Config: &config.Agent{DataDir: c.DataDir}} }
	})
	of := func(c *api.Client, name string) []string {
		t.Helper()
		resp, err := c.Agent.Examine(h.ctx, &hostv1.ExamineRequest{})
		check.NoError(t, err)
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

// Callers who ask meanwhile share an examination, those with other rights wait, and one that was made is an answer
// for a while.
func TestExaminationsAreShared(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	var running, made atomic.Int64
	h := openACLHost(t, func(c *Config) {
		c.Patient = func() doctor.Patient {
			if running.Add(1) > 1 {
				t.Error("two examinations at a time")
			}
			defer running.Add(-1)
			made.Add(1)
			begun <- struct{}{}
			<-release
			return doctor.Patient{Config: &config.Agent{DataDir: c.DataDir}}
		}
	})
	reader := h.as(t, "reader", `agent { policy = "read" }`)
	type answer struct {
		resp *hostv1.ExamineResponse
		err  error
	}
	answers := make(chan answer)
	ask := func(ctx context.Context, c *api.Client) {
		resp, err := c.Agent.Examine(ctx, &hostv1.ExamineRequest{})
		answers <- answer{resp, err}
	}
	first, leave := context.WithCancel(h.ctx)
	go ask(first, h.client)
	<-begun
	leave() // the examination goes on for the others
	if a := <-answers; connect.CodeOf(a.err) != connect.CodeCanceled {
		t.Errorf("the caller who left has %v", a.err)
	}
	for range 2 {
		go ask(h.ctx, h.client)
	}
	go ask(h.ctx, reader)
	release <- struct{}{}
	for range 2 {
		check.NoError(t, (<-answers).err) // root's: the reader's turn has not come, or it is not released
	}
	<-begun
	release <- struct{}{}
	check.NoError(t, (<-answers).err)
	go ask(h.ctx, h.client)
	check.NoError(t, (<-answers).err)
	if n := made.Load(); n != 2 {
		t.Errorf("%d examinations were made for five callers of two kinds", n)
	}
}
