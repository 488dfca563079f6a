"""The LSTM encoder-decoder with dot attention (Luong et al. 2015; Snell et al. 2021), for Auto classes."""
