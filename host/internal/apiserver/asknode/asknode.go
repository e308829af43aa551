package asknode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/pannier/pannier/cluster/discovery"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/peer/route"
	"github.com/pannier/pannier/host/internal/system/pki"
	"github.com/pannier/pannier/host/internal/system/tracing"
	"github.com/pannier/pannier/internal/errcode"
	"github.com/pannier/pannier/sdk/api"
	"github.com/pannier/pannier/sdk/api/proto/pannier/host/v1/hostv1connect"
)

// nodeCalls are these calls, with the command that does the same on the node itself.
var nodeCalls = map[string]string{
	hostv1connect.AgentServiceStatusProcedure:           "pannier status",
	hostv1connect.AgentServiceEventsProcedure:           "pannier events",
	hostv1connect.AgentServiceExamineProcedure:          "pannier doctor",
	hostv1connect.PluginServiceListPluginsProcedure:     "pannier plugin list",
	hostv1connect.WorkloadServiceListWorkloadsProcedure: "pannier workload list",
	hostv1connect.WorkloadServiceGetWorkloadProcedure:   "pannier workload status",
	hostv1connect.WorkloadServiceCheckWorkloadProcedure: "pannier workload start -dry-run",
	hostv1connect.WorkloadServiceStartWorkloadProcedure: "pannier workload start",
	hostv1connect.WorkloadServiceStopWorkloadProcedure:  "pannier workload stop",
}

const (
	// nodePatience bounds the time until a node has answered, or has begun a stream. A server that asks it in place of
	// another node has so long, and serverPatience more is for asking the server.
	nodePatience   = 5 * time.Second
	serverPatience = time.Second
	// maxNodeAnswer is the size of the largest answer of another node, in bytes.
	maxNodeAnswer = 16 << 20
)

var (
	errUnknownNode = errcode.NotFound.New("it is no member of the cluster (pannier server members lists them)")
	errLeftNode    = errcode.Unavailable.New("it has left the cluster (pannier server members)")
	errNoAnswer    = errcode.Unavailable.New("it has not answered in time")
	errPassedOn    = errcode.FailedPrecondition.New("a server has passed on a call that is for another node")
)

// Asker has calls answered by other nodes.
type Asker struct {
	Name string // of this node
	// Discovery knows the cluster's agents; nil: this host is in no cluster.
	Discovery interface {
		Member(name string) (discovery.Member, bool)
	}
	// Direct is set on servers, which ask nodes themselves.
	Direct bool
	// Leader knows the servers that a node asks instead.
	Leader *route.Router
	// Agents sends requests of the API to other agents, https:// and an agent's name.
	Agents http.RoundTripper
	Traces *tracing.Tracer
}

// Answering has the agent's name in the header of the answers of such calls.
func Answering(name string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if nodeCalls[r.URL.Path] != "" {
			w.Header().Set(api.NodeHeader, name)
			r = r.WithContext(context.WithValue(r.Context(), answerKey{}, w.Header()))
		}
		next.ServeHTTP(w, r)
	})
}

type answerKey struct{}

// answered has another node's name in the header of an answer that has not begun.
func answered(ctx context.Context, node string) {
	if header, ok := ctx.Value(answerKey{}).(http.Header); ok {
		header.Set(api.NodeHeader, node)
	}
}

// IsOther reports whether a request names another node than this one.
func (a *Asker) IsOther(node string) bool { return node != "" && node != a.Name }

// Clients make the calls to one agent.
type Clients struct {
	hostv1connect.AgentServiceClient
	hostv1connect.PluginServiceClient
	hostv1connect.WorkloadServiceClient
}

// Clients return clients that make calls to one agent.
func (a *Asker) Clients(agent string) Clients {
	client, base := &http.Client{Transport: a.Agents}, "https://"+agent
	options := connect.WithClientOptions(connect.WithReadMaxBytes(maxNodeAnswer),
		connect.WithInterceptors(append([]connect.Interceptor{api.CheckNode()}, a.Traces.Connect()...)...))
	return Clients{
		hostv1connect.NewAgentServiceClient(client, base, options),
		hostv1connect.NewPluginServiceClient(client, base, options),
		hostv1connect.NewWorkloadServiceClient(client, base, options),
	}
}

// way is how a call gets to a node.
type way struct {
	node discovery.Member
	// agents are the node itself, or servers that can ask it; the first one that is reached asks.
	agents []string
	// more is the time that the way takes besides the node.
	more time.Duration
	// header is the caller's part of the passed on request.
	header http.Header
	// command does the same on the node.
	command string
}

// wayTo finds a node for a caller.
func (a *Asker) wayTo(ctx context.Context, node string) (way, error) {
	info, _ := connect.CallInfoForHandlerContext(ctx)
	w := way{command: nodeCalls[info.Spec().Procedure]}
	if a.Discovery == nil {
		return w, fmt.Errorf("ask node %q: %w", call.Shortened(node), call.ErrAlone)
	}
	c := call.CallerOf(ctx)
	var known bool
	switch w.node, known = a.Discovery.Member(node); {
	case !known:
		return w, fmt.Errorf("ask node %q: %w", call.Shortened(node), errUnknownNode)
	case w.node.Status == discovery.Left:
		return w, fmt.Errorf("ask node %q: %w", node, errLeftNode)
	case c.Asker != "" && c.Cert.Role == pki.Server:
		return w, fmt.Errorf("ask node %q: %w: this one is %q", node, errPassedOn, a.Name)
	}
	token := info.RequestHeader().Get(api.TokenHeader)
	w.header = http.Header{call.ForwardedHeader: {c.From(a.Name)}, api.TokenHeader: {token}}
	if a.Direct || w.node.Role == discovery.Server {
		w.agents = []string{node}
		return w, nil
	}
	w.more = serverPatience
	for _, server := range a.Leader.Servers() {
		w.agents = append(w.agents, server.Name)
	}
	return w, nil
}

// onward is the context of the passed on call.
func (w way) onward(ctx context.Context) context.Context {
	ctx, call := connect.NewClientContext(ctx)
	maps.Copy(call.RequestHeader(), w.header)
	return ctx
}

// ask makes a call by one agent after the other until one is reached. call reports that the answer has begun.
func (a *Asker) ask(ctx context.Context, w way, call func(c Clients) (begun bool, err error)) error {
	var tried []string
	for _, agent := range w.agents {
		begun, err := call(a.Clients(agent))
		switch {
		case err == nil:
			answered(ctx, w.node.Name)
			return nil
		case errors.As(err, new(*api.NodeError)):
			return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("node %q cannot be asked from here: the agent of "+
				"%q speaks for itself only; run on %s: %s", w.node.Name, agent, w.node.Name, w.command))
		case agent == w.node.Name && connect.IsWireError(err):
			answered(ctx, w.node.Name)
			return w.failed(connect.CodeOf(err), err)
		case begun, ctx.Err() != nil, connect.IsWireError(err):
			return err
		}
		tried = append(tried, fmt.Sprintf("%q: %s", agent, message(err)))
	}
	return connect.NewError(connect.CodeUnavailable, fmt.Errorf("ask node %q (%s in gossip): no answer (%s); see "+
		"pannier node status %s, or run there: %s", w.node.Name, w.node.Status, strings.Join(tried, "; "), w.node.Name, w.command))
}

// failed is a node's own error.
func (w way) failed(code connect.Code, err error) error {
	return connect.NewError(code, fmt.Errorf("node %q: %s", w.node.Name, message(err)))
}

// message is the text of an error without its code.
func message(err error) string {
	if failed := (*connect.Error)(nil); errors.As(err, &failed) {
		return failed.Message()
	}
	return err.Error()
}

// endedBy returns the reason for which a call was given up, or else its error.
func endedBy(ctx context.Context, err error) error {
	if why := context.Cause(ctx); err != nil && why != nil && !errors.Is(why, context.Canceled) {
		return why
	}
	return err
}

// Ask has a node answer a unary call, within nodePatience and more.
func Ask[Q, A any](ctx context.Context, a *Asker, req *Q, node string, more time.Duration,
	call func(Clients, context.Context, *Q) (*A, error),
) (*A, error) {
	w, err := a.wayTo(ctx, node)
	if err != nil {
		return nil, err
	}
	patient, cancel := context.WithTimeoutCause(ctx, nodePatience+w.more+more, errNoAnswer)
	defer cancel()
	var answer *A
	err = a.ask(ctx, w, func(c Clients) (begun bool, err error) {
		if answer, err = call(c, w.onward(patient), req); err != nil {
			return false, endedBy(patient, err)
		}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// Stream passes on a node's stream until the caller or the node ends it. The node sends its headers at once.
func Stream[Q, A any](ctx context.Context, a *Asker, req *Q, node string, stream *connect.ServerStream[A],
	call func(Clients, context.Context, *Q) (*connect.ServerStreamForClient[A], error),
) error {
	w, err := a.wayTo(ctx, node)
	if err != nil {
		return err
	}
	return a.ask(ctx, w, func(c Clients) (begun bool, err error) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		late := time.AfterFunc(nodePatience+w.more, func() { cancel(errNoAnswer) })
		defer late.Stop()
		answers, err := call(c, w.onward(ctx), req)
		if err != nil {
			return false, endedBy(ctx, err)
		}
		defer answers.Close()
		if answers.ResponseHeader().Get(api.NodeHeader) == w.node.Name && late.Stop() {
			begun = true
			answered(ctx, w.node.Name)
			if err := stream.Send(nil); err != nil { // the first message may be far off
				return begun, err
			}
		}
		for answers.Receive() {
			if err := stream.Send(answers.Msg()); err != nil {
				return begun, err
			}
		}
		return begun, endedBy(ctx, answers.Err())
	})
}
