"""Proof: are two programs one function? By rules, normal forms and cuts; refuted by inputs on which they differ."""
