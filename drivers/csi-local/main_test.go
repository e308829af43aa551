package main

import (
	"testing"

	"github.com/pannier/pannier/test/lib/testns"
)

func TestMain(m *testing.M) { testns.Main(m, 0) }
