package workloads

import (
	"cmp"
	"context"
	"slices"

	"github.com/pannier/pannier/cluster/claim"
	"github.com/pannier/pannier/cluster/state"
	"github.com/pannier/pannier/host/internal/apiserver/call"
	"github.com/pannier/pannier/host/internal/consul/tokens"
	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

// ListTokens lists the ledger's tokens by workload and service.
func (h *Handler) ListTokens(ctx context.Context,
	req *hostv1.ListTokensRequest,
) (*hostv1.ListTokensResponse, error) {
	namespace, workload := call.AllOr(req.GetNamespace()), req.GetWorkload()
	for field, id := range map[string]string{"namespace": namespace, "workload": workload} {
		if id == "" {
			continue
		}
		if err := claim.CheckID(id); err != nil {
			return nil, call.Invalid("list tokens", field, err.Error())
		}
	}
	topics, err := h.tokenTopics(ctx)
	if err != nil {
		return nil, err
	}
	// The list is read afterwards, so it is at least as new.
	meta, err := call.Read(ctx, h.Ledger, req, topics, func(*state.ReadTx) error { return nil })
	if err != nil {
		return nil, err
	}
	all, err := h.Tokens.List(ctx, namespace, workload)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b tokens.Listed) int {
		return cmp.Or(cmp.Compare(a.Workload.Namespace, b.Workload.Namespace), cmp.Compare(a.Workload.ID, b.Workload.ID),
			cmp.Compare(a.Service, b.Service), a.CreatedAt.Compare(b.CreatedAt))
	})
	resp := &hostv1.ListTokensResponse{Meta: meta}
	for _, t := range all {
		resp.Tokens = append(resp.Tokens, shownToken(t.Token, t.Orphan))
	}
	return resp, nil
}

// tokenTopics change with every token: it is recorded when its workload starts, and changes on its node.
func (h *Handler) tokenTopics(ctx context.Context) ([]state.Topic, error) {
	all, err := call.Reading(ctx, h.Ledger, (*state.ReadTx).Nodes)
	topics := call.Each(all, func(n claim.Node) state.Topic { return state.TopicTokensOn(n.Name) })
	return append(topics, state.TopicWorkloads), err
}

// SweepTokens revokes the tokens whose workload is gone.
func (h *Handler) SweepTokens(ctx context.Context,
	req *hostv1.SweepTokensRequest,
) (*hostv1.SweepTokensResponse, error) {
	report, err := h.Tokens.Sweep(ctx, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	resp := &hostv1.SweepTokensResponse{}
	for _, t := range report.Swept {
		shown := &hostv1.SweptToken{Token: shownToken(t.Token, true), Reason: t.Reason, Revoked: t.Revoked}
		if t.Err != nil {
			shown.Error = t.Err.Error()
		}
		resp.Tokens = append(resp.Tokens, shown)
	}
	for _, err := range report.Problems {
		resp.Problems = append(resp.Problems, err.Error())
	}
	return resp, nil
}

func shownToken(t claim.Token, orphan bool) *hostv1.Token {
	return &hostv1.Token{
		Id: t.ID, Accessor: t.Accessor, Namespace: t.Workload.Namespace, Workload: t.Workload.ID, Service: t.Service,
		Node:   t.Node,
		Consul: t.Consul, CreatedAt: call.Time(t.CreatedAt), ExpiresAt: call.Time(t.ExpiresAt), Orphan: orphan,
	}
}
