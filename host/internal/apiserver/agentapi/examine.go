package agentapi

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/pannier/pannier/host/internal/apiserver/asknode"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/config/doctor"
	"github.com/pannier/pannier/internal/errcode"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

const (
	// examinePatience bounds an examination, and the wait for others' examinations.
	examinePatience = 20 * time.Second
	// examineKept is how long the findings are an answer to the next caller with the same rights, so that pages that are
	// kept up to date do not keep the host busy.
	examineKept = 10 * time.Second
)

// errExamines: callers with other rights were first.
var errExamines = errcode.Unavailable.New("other examinations of this host took too long: call again")

// examinations are made one at a time.
type examinations struct {
	turn chan struct{} // has a value while one is made, or looked for
	// made are the examinations that are still an answer, by their caller.
	made map[rights]*hostv1.ExamineResponse
	// unended are the checks that hang (doctor.Patient).
	unended sync.Map
}

// rights are what decides what a caller may see, and so what its examination finds.
type rights struct {
	accessor, certificate, plugin string
	root                          bool
}

// Examine makes the checks of pannier doctor, unless they were just made for such a caller.
func (h *Handler) Examine(ctx context.Context, req *hostv1.ExamineRequest) (*hostv1.ExamineResponse, error) {
	c := call.CallerOf(ctx)
	if node := req.GetNode(); h.Nodes.IsOther(node) {
		return asknode.Ask(ctx, h.Nodes, req, node, examinePatience, asknode.Clients.Examine)
	}
	x := h.examinations
	select {
	case x.turn <- struct{}{}:
		defer func() { <-x.turn }()
	case <-time.After(examinePatience):
		return nil, errExamines
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	maps.DeleteFunc(x.made, func(_ rights, r *hostv1.ExamineResponse) bool {
		return time.Since(r.GetAt().AsTime()) > examineKept
	})
	who := rights{accessor: c.Accessor, plugin: c.Plugin, root: c.Root}
	if c.Cert != nil {
		who.certificate = c.Cert.String()
	}
	if made := x.made[who]; made != nil {
		return made, nil
	}
	checking, cancel := context.WithTimeout(ctx, examinePatience)
	defer cancel()
	p := h.Patient()
	p.Client, p.Unended = h.client(call.SecretOf(ctx)), &x.unended
	found, err := doctor.Examine(checking, p)
	if err == nil {
		err = context.Cause(ctx) // of a caller who left, the checks are not complete
	}
	if err != nil {
		return nil, err
	}
	x.made[who] = &hostv1.ExamineResponse{Node: h.Name, At: call.Time(time.Now())}
	for _, f := range found {
		x.made[who].Findings = append(x.made[who].Findings, &hostv1.Finding{
			Check: f.Check, Status: string(f.Status), Why: f.Why, Command: f.Command, Subject: f.Subject,
		})
	}
	return x.made[who], nil
}
