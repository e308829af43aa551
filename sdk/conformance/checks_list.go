package conformance

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pannier/pannier/sdk/storage"
)

// listChecks run when the other checks no longer change what is listed.
var listChecks = []*Check{
	{
		ID:    "volume.listed",
		kind:  storage.Kind,
		Says:  "List in pages of one has every volume exactly once, and refuses a token that it did not give with Aborted.",
		Fix:   "Sort by something that never changes, such as the id, and let the token name the last entry of the page, not its number.",
		after: stored,
		last:  true,
		run:   inLab(checkListed),
	},
	{
		ID:    "snapshot.listed",
		kind:  storage.Kind,
		Says:  "ListSnapshots in pages of one has every snapshot exactly once, and refuses a token that it did not give with Aborted.",
		Fix:   "Sort by something that never changes, such as the id, and let the token name the last entry of the page, not its number.",
		after: stored,
		last:  true,
		run:   inLab(checkSnapshotsListed),
	},
}

// lister returns a page's ids, and the token of the next page.
type lister func(context.Context, storage.Page) (ids []string, next string, err error)

func (l *lab) listVolumes(ctx context.Context, page storage.Page) (ids []string, next string, err error) {
	res, err := l.client().List(ctx, l.cfg.Driver, page)
	for _, v := range res.Volumes {
		ids = append(ids, v.ExternalID)
	}
	return ids, res.Next, err
}

// maxPages bounds how long a list without an end is read.
const maxPages = 10_000

// pages returns the ids of all pages, which have at most size entries; 0: as many as the driver likes.
func pages(ctx context.Context, size int, list lister) ([]string, error) {
	var all []string
	page := storage.Page{Max: size}
	for range maxPages {
		var ids []string
		var next string
		err := insist(ctx, func(ctx context.Context) (err error) {
			ids, next, err = list(ctx, page)
			return err
		})
		switch {
		case err != nil:
			return nil, fmt.Errorf("page %q of the list: %w", page.Token, err)
		case size > 0 && len(ids) > size:
			return nil, fmt.Errorf("a page of at most %d entries has %d", size, len(ids))
		}
		all = append(all, ids...)
		if next == "" {
			return all, nil
		}
		page.Token = next
	}
	return nil, fmt.Errorf("the list has more than %d pages", maxPages)
}

// listed checks a list that has some ids, in pages of one and with a wrong token.
func listed(ctx context.Context, own []string, list lister) error {
	all, err := pages(ctx, 1, list)
	if err != nil {
		return err
	}
	seen := map[string]int{}
	for _, id := range all {
		if seen[id]++; seen[id] > 1 {
			return fmt.Errorf("in pages of one the list has %q twice", id)
		}
	}
	for _, id := range own {
		if seen[id] == 0 {
			return fmt.Errorf("in pages of one the list lacks %q, which exists", id)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if _, _, err := list(ctx, storage.Page{Max: 1, Token: "no-such-token"}); status.Code(err) != codes.Aborted {
		return fmt.Errorf("to list from a token that was never given: got %w, want Aborted", orSuccess(err))
	}
	return nil
}

func checkListed(ctx context.Context, l *lab) error {
	if !l.fp.Controller.ListVolumes {
		return skip("needs a driver that lists volumes")
	}
	var own []string
	for range 3 {
		v, err := l.another()
		if err != nil {
			return err
		}
		if err := l.do(ctx, "Create", v.create); err != nil {
			return err
		}
		own = append(own, v.ExternalID)
	}
	return listed(ctx, own, l.listVolumes)
}

func checkSnapshotsListed(ctx context.Context, l *lab) error {
	if !l.fp.Controller.CreateDeleteSnapshot || !l.fp.Controller.ListSnapshots {
		return skip("needs a driver that makes and lists snapshots")
	}
	v, _, err := l.filled(ctx)
	if err != nil {
		return err
	}
	for n := range 3 {
		if _, err := l.snapshot(ctx, v, fmt.Sprint(v.Name, "-", n)); err != nil {
			return err
		}
	}
	return listed(ctx, l.snapshots, l.listSnapshots)
}

func (l *lab) listSnapshots(ctx context.Context, page storage.Page) (ids []string, next string, err error) {
	res, err := l.client().ListSnapshots(ctx, l.cfg.Driver, storage.ListSnapshotsRequest{
		Page: page, Secrets: l.volumeSecrets(),
	})
	for _, s := range res.Snapshots {
		ids = append(ids, s.ID)
	}
	return ids, res.Next, err
}
