"""Sparse algorithms of other systems, written from their papers, as arms to compare with; not part of Pliant's own."""

from pliant.cli.bench.peers.gtopk import GTopK
from pliant.cli.bench.peers.layered import UniformBlocks
from pliant.cli.bench.peers.oktopk import OkTopk
from pliant.cli.bench.peers.plans import peer, peer_plan, register_peers
from pliant.cli.bench.peers.scalecom import ScaleCom
from pliant.cli.bench.peers.sparcml import SparCml

__all__ = ["GTopK", "OkTopk", "ScaleCom", "SparCml", "UniformBlocks", "peer", "peer_plan", "register_peers"]
