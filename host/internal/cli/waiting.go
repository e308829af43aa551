package cli

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pannier/pannier/sdk/api"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

const (
	// silence is how long a command says nothing to a person who waits for it.
	silence = 2 * time.Second
	// lookPatience bounds a look at what it waits for. It is shorter than silence, so looks are not announced.
	lookPatience = time.Second
)

// Announce notes on a terminal what a command waits for, when it has waited for a while, and whenever that changes,
// until the returned function is called.
func (a *App) Announce(ctx context.Context, what func(ctx context.Context) string) (done func()) {
	if !isTerminal(a.Err) {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var looks sync.WaitGroup
	looks.Go(func() {
		for said := ""; ; {
			select {
			case <-time.After(silence):
			case <-ctx.Done():
				return
			}
			if text := what(ctx); text != said && ctx.Err() == nil {
				a.Note("%s ...", text)
				said = text
			}
		}
	})
	return func() {
		cancel()
		looks.Wait()
	}
}

// announced is Announce for every call of the agent that is answered once.
func (a *App) announced() connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			if r, ok := req.Any().(interface{ GetRead() *hostv1.ReadOptions }); ok && r.GetRead().GetIndex() > 0 {
				return next(ctx, req) // it asks for a change
			}
			defer a.announceCall(ctx, path.Base(req.Spec().Procedure))()
			return next(ctx, req)
		}
	})
}

// announceCall is Announce for one call of the agent.
func (a *App) announceCall(ctx context.Context, procedure string) (done func()) {
	began := time.Now()
	return a.Announce(ctx, func(ctx context.Context) string {
		ctx, cancel := context.WithTimeout(ctx, lookPatience)
		defer cancel()
		return waitsFor(ctx, a.client, procedure, began)
	})
}

var capital = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\B[A-Z]`) })

// waitsFor returns what a call waits for since a time: the leader, or what the agent has last reported since.
func waitsFor(ctx context.Context, client *api.Client, procedure string, began time.Time) string {
	status, err := client.Agent.Status(ctx, &hostv1.StatusRequest{})
	switch {
	case err != nil:
		return "waiting for the agent"
	case strings.Contains(status.GetMessage(), "no leader"):
		return "waiting for the cluster's leader"
	case !status.GetReady():
		return "waiting for the agent: " + status.GetMessage()
	}
	last := strings.ToLower(capital().ReplaceAllString(procedure, " $0")) + " is under way"
	stream, err := client.Agent.Events(ctx, &hostv1.EventsRequest{Recent: 1, Since: timestamppb.New(began)})
	_ = each(ctx, stream, err, func(m *hostv1.EventsResponse) error {
		if text := m.GetEvent().GetMessage(); text != "" {
			last = fmt.Sprintf("%s; last: %s", last, text)
		}
		return nil
	}) // a caller who may not see events sees none
	return "waiting: " + last
}
