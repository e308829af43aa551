package api

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// NodeHeader names the agent that answers, in the answers of calls that can be asked of another node. An answer that
// is an error has it too; it may be the one of an agent on the way.
const NodeHeader = "X-Pannier-Node"

// NodeError is returned if a call that was meant for one node was not answered by it. Its answer was discarded.
type NodeError struct {
	// Node was asked.
	Node string
	// Answered has answered; empty: it did not name itself.
	Answered string
}

// Error names who has answered, and what to do.
func (e *NodeError) Error() string {
	return fmt.Sprintf("node %q was asked, and %q has answered: run the command on that node", e.Node, e.Answered)
}

// CheckNode makes sure that the node which a request names is the one that answers; otherwise the error is a
// *NodeError. The clients of New and NewOver have it.
func CheckNode() connect.Interceptor { return checkNode{} }

type checkNode struct{}

// nodeOf is the node that a request is for; empty: the agent that is called.
func nodeOf(msg any) string {
	switch m := msg.(type) {
	case *hostv1.StatusRequest:
		return m.GetNode()
	case *hostv1.EventsRequest:
		return m.GetNode()
	case *hostv1.ExamineRequest:
		return m.GetNode()
	case *hostv1.ListPluginsRequest:
		return m.GetNode()
	case *hostv1.ListWorkloadsRequest:
		return m.GetNode()
	case *hostv1.GetWorkloadRequest:
		return m.GetNode()
	case *hostv1.CheckWorkloadRequest:
		return m.GetNode()
	case *hostv1.StartWorkloadRequest:
		return m.GetNode()
	case *hostv1.StopWorkloadRequest:
		return m.GetNode()
	default:
		return ""
	}
}

// check returns err, or that another agent has answered. An error of the way to the node is of an agent on the way.
func check(node, answered string, err error) error {
	ended := err == nil || errors.Is(err, io.EOF)
	switch {
	case node == "", !ended && (answered != "" || !connect.IsWireError(err)):
		return err
	case answered != node:
		return connect.NewError(connect.CodeFailedPrecondition, &NodeError{Node: node, Answered: answered})
	}
	return err
}

func (checkNode) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		resp, err := next(ctx, req)
		answered := ""
		if failed := (*connect.Error)(nil); errors.As(err, &failed) {
			answered = failed.Meta().Get(NodeHeader)
		} else if err == nil {
			answered = resp.Header().Get(NodeHeader)
		}
		if err := check(nodeOf(req.Any()), answered, err); err != nil {
			return nil, err
		}
		return resp, nil
	}
}

func (checkNode) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		return &checkedStream{StreamingClientConn: next(ctx, spec)}
	}
}

func (checkNode) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// checkedStream is a stream whose first message names a node.
type checkedStream struct {
	connect.StreamingClientConn
	node string
}

func (s *checkedStream) Send(msg any) error {
	if node := nodeOf(msg); node != "" {
		s.node = node
	}
	return s.StreamingClientConn.Send(msg)
}

func (s *checkedStream) Receive(msg any) error {
	err := s.StreamingClientConn.Receive(msg)
	return check(s.node, s.ResponseHeader().Get(NodeHeader), err)
}
