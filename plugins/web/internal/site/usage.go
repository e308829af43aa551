package site

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	hostv1 "github.com/pannier/pannier/sdk/api/proto/pannier/host/v1"
)

const (
	// usageKept is how long an answer about a volume's usage is shown to who has asked: each is a call of the driver on
	// the volume's node.
	usageKept = 10 * time.Second
	// askedAtOnce bounds these calls of one page.
	askedAtOnce = 8
	// eventsKept is how long the events of another node are shown to who has asked.
	eventsKept = 5 * time.Second
	maxKept    = 4096 // answers; then all are forgotten
)

// kept keeps answers for each user.
type kept[A any] struct {
	mu   sync.Mutex
	seen map[[sha256.Size]byte]keptAnswer[A]
}

type keptAnswer[A any] struct {
	answer A
	at     time.Time
}

// of returns the answer to a question of a user that is younger than age, or asks. An error is not kept.
func (c *kept[A]) of(u user, question string, age time.Duration, ask func() (A, error)) (A, error) {
	key := sha256.Sum256([]byte(u.Secret + "\n" + question))
	c.mu.Lock()
	seen, ok := c.seen[key]
	c.mu.Unlock()
	if ok && time.Since(seen.at) < age {
		return seen.answer, nil
	}
	answer, err := ask()
	if err != nil {
		return answer, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil || len(c.seen) >= maxKept {
		c.seen = map[[sha256.Size]byte]keptAnswer[A]{}
	}
	c.seen[key] = keptAnswer[A]{answer, time.Now()}
	return answer, nil
}

// fillUsage adds the usage of the rows that are mounted somewhere. It is asked anew when others have the volume.
func (s *Site) fillUsage(ctx context.Context, u user, rows []row) {
	var asking errgroup.Group
	asking.SetLimit(askedAtOnce)
	for n := range rows {
		v, claims := rows[n].GetSpec(), rows[n].GetClaims()
		if len(claims) == 0 {
			continue
		}
		asking.Go(func() (err error) {
			question := fmt.Sprint(v.GetNamespace(), "/", v.GetId(), " ", claims[0].GetIndex())
			rows[n].Usage, err = s.usages.of(u, question, usageKept, func() (*hostv1.VolumeUsage, error) {
				res, err := s.host.Volumes.GetVolume(ctx, &hostv1.GetVolumeRequest{Namespace: v.GetNamespace(), Id: v.GetId()})
				return res.GetUsage(), err
			})
			return err
		})
	}
	_ = asking.Wait() // the usage is not shown
}
