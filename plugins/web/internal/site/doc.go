// Package site is the pages: what they show (a file for each subject), how they are made and kept up to date (page.go),
// and what protects them (guard.go).
//
// Invariants: each call of the API is made as the user who asked, never as the plugin (caller.go); nothing is
// changed but by a POST with a form of the user's own session, and only where the configuration allows actions; every
// text of the API reaches a page through html/template.
package site
